#include "call.h"

#include <torch/csrc/stable/accelerator.h>

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "allocation.h"
#include "context.h"
#include "core/declaration/parts.h"
#include "errors.h"
#include "tensors.h"

namespace fusedops::torch_binding {

using torch::stable::detail::to;

namespace {

struct Arguments {
  PartialArray<Tensor, kMaxInputs> inputs;  // null: absent, a number, or a list
  PartialArray<View, kMaxInputs> views;
  PartialArray<Device, kMaxInputs> devices;
  struct {
    std::vector<Tensor> tensors;
    std::vector<View> views;
    std::vector<Device> devices;
  } items;                                 // of all lists, concatenated
  PartialArray<size_t, kMaxInputs> first;  // position of a list in `items`
  PartialArray<int64_t, kMaxInputs> counts;
  PartialArray<double, kMaxInputs> scalars;
  PartialArray<Value, kMaxAttributes> attributes;

  // Takes ownership of all handles before anything may throw. look_at_tensors() queries the tensors.
  Arguments(const Operator& op, const StableIValue* stack)
      : inputs(op.inputs.size()),
        views(op.inputs.size()),
        devices(op.inputs.size()),
        first(op.inputs.size()),
        counts(op.inputs.size()),
        scalars(op.inputs.size()),
        attributes(op.attributes.size()) {
    for (size_t i = 0; i < op.inputs.size(); ++i, ++stack) {
      if (op.inputs[i].kind == Kind::list)
        take_list(i, *stack);
      else if (op.inputs[i].kind == Kind::tensor)
        inputs[i].reset(to<AtenTensorHandle>(*stack));
      else if (const auto handle = to<std::optional<AtenTensorHandle>>(*stack))
        inputs[i].reset(*handle);
    }
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (op.inputs[i].kind == Kind::scalar) scalars[i] = to<double>(*stack++);
    for (size_t i = 0; i < op.attributes.size(); ++i) read(op.attributes[i].type, *stack++, &attributes[i]);
  }

  void take_list(size_t place, StableIValue list) {
    const auto handles = to<std::vector<AtenTensorHandle>>(list);
    first[place] = items.tensors.size();
    counts[place] = static_cast<int64_t>(handles.size());
    for (const AtenTensorHandle handle : handles) items.tensors.emplace_back(handle);
  }

  // The device of the first tensor. require_device() checks the others.
  Device first_device(const Operator& op) const {
    const size_t place = first_tensor(op);
    if (op.inputs[place].kind != Kind::list) return device_of(inputs[place]);
    return counts[place] > 0 ? device_of(items.tensors[first[place]]) : Device{aoti_torch_device_type_cpu(), 0};
  }

  // Queries everything about one tensor while it is in the cache. Lists may have more tensors than fit.
  void look_at_tensors(const Operator& op) {
    items.views.reserve(items.tensors.size());
    items.devices.reserve(items.tensors.size());
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const bool updated = op.inputs[i].updated;
      if (inputs[i]) {
        views[i] = view_of(inputs[i], updated);
        devices[i] = device_of(inputs[i]);
      }
      for (int64_t item = 0; item < counts[i]; ++item) {
        const Tensor& tensor = items.tensors[items.views.size()];
        items.views.push_back(view_of(tensor, updated));
        items.devices.push_back(device_of(tensor));
      }
    }
  }

  static void read(Type type, StableIValue item, Value* value) {
    switch (type) {
      case Type::f64:
        value->f64 = to<double>(item);
        break;
      case Type::i64:
        value->i64 = to<int64_t>(item);
        break;
      case Type::boolean:
        value->i64 = to<bool>(item);
        break;
      case Type::string:
        value->string = to<std::string>(item);
        break;
      case Type::f64s:
        value->f64s = to<std::vector<double>>(item);
        break;
    }
  }
};

// Describes the arguments to the core's `infer`.
class TorchRule : public Rule {
 public:
  TorchRule(const Operator& op, const Arguments& arguments)
      : Rule(op, arguments.attributes.data()), arguments_(arguments) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const int input = static_cast<int>(i);
      counts[i] = arguments.counts[i];
      for (int64_t item = 0; item < counts[i]; ++item) require(check_rank(input, view(input, item).rank, item));
      if (!arguments.inputs[i]) continue;
      require(check_rank(input, arguments.views[i].rank));
      describe(arguments.views[i], &inputs[i]);
    }
  }

  void read(int input, int64_t item, Shape* shape) override { describe(view(input, item), shape); }

 private:
  const View& view(int input, int64_t item) const {
    return arguments_.items.views[arguments_.first[input] + static_cast<size_t>(item)];
  }

  const Arguments& arguments_;
};

// All tensors must be on the call's device.
void require_device(const Operator& op, const Arguments& arguments, Device device) {
  const auto devices = [&](size_t i) -> std::span<const Device> {
    if (op.inputs[i].kind == Kind::list)
      return std::span(arguments.items.devices).subspan(arguments.first[i], static_cast<size_t>(arguments.counts[i]));
    return {&arguments.devices[i], arguments.inputs[i] ? size_t(1) : 0};
  };
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    for (size_t item = 0; const Device other : devices(i)) {
      if (!(other == device)) {
        const std::string place = op.inputs[i].kind == Kind::list ? "[" + std::to_string(item) + "]" : "";
        require(Status::error("fusedops.", public_name(op), ": ", op.inputs[i].name, place, " must be on ",
                              op.inputs[first_tensor(op)].name, "'s device, ", name_of(device), "; got ",
                              name_of(other)));
      }
      ++item;
    }
  }
}

// Contiguous copies of tensors whose layout the operator does not support. Mutated inputs are copied back.
class Copies {
 public:
  explicit Copies(Device device) : device_(device) {}

  void make_readable(const Input& input, Tensor& tensor, View* view) {
    if (has_layout(*view, input.layout)) return;
    Tensor copy = contiguous(tensor, *view, device_);
    std::swap(tensor, copy);
    *view = view_of(tensor);
    if (input.updated) mutated_.emplace_back(std::move(copy), tensor.get());
  }

  void copy_back() const {
    for (const auto& [tensor, copy] : mutated_)
      require(aoti_torch_copy_(tensor.get(), copy, /*non_blocking=*/0), "copy a tensor");
  }

 private:
  const Device device_;
  std::vector<std::pair<Tensor, AtenTensorHandle>> mutated_;
};

// A mutated tensor must not have elements that share memory.
Status check_distinct(const Input& input, const Operator& op, const View& view) {
  if (view.numel() == 0 || has_layout(view, Layout::contiguous)) return {};
  std::array<std::pair<int64_t, int64_t>, kMaxRank> dims;  // (stride, size), sorted
  for (int d = 0; d < view.rank; ++d) dims[d] = {view.sizes[d] > 1 ? view.strides[d] : 0, view.sizes[d]};
  std::sort(dims.begin(), dims.begin() + view.rank);
  int64_t extent = 1;  // of the previous dimensions
  for (int d = 0; d < view.rank; ++d) {
    const auto [stride, size] = dims[d];
    if (size > 1 && stride < extent)
      return Status::error(
          "fusedops.", public_name(op), ": ", input.name,
          " must have an element of memory for each of its own, to be updated; got elements that share memory");
    extent += (size - 1) * stride;
  }
  return {};
}

// The address range of a view.
std::pair<const char*, const char*> range_of(const View& view) {
  int64_t last = 0;
  for (int d = 0; d < view.rank; ++d) last += (view.sizes[d] - 1) * view.strides[d];
  const char* const begin = static_cast<const char*>(view.data);
  return {begin, view.numel() == 0 ? begin : begin + (last + 1) * size_of(view.dtype)};
}

// A mutated input must not share memory with another input. Inputs that are copied are exempt, and so are lists: an
// optimizer's tensors are distinct. Adjacent columns of one matrix are refused, too, since their ranges overlap.
Status check_shared(const Operator& op, const Arguments& arguments) {
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Input& mutated = op.inputs[i];
    if (!mutated.updated || mutated.kind == Kind::list || !has_layout(arguments.views[i], mutated.layout)) continue;
    const auto [begin, end] = range_of(arguments.views[i]);
    for (size_t j = 0; j < op.inputs.size(); ++j) {
      if (j == i || !arguments.inputs[j] || !has_layout(arguments.views[j], op.inputs[j].layout)) continue;
      const auto [other_begin, other_end] = range_of(arguments.views[j]);
      if (begin < other_end && other_begin < end)
        return Status::error("fusedops.", public_name(op), ": ", mutated.name,
                             " must have memory of its own, to be updated; got memory within the range of ",
                             op.inputs[j].name, "'s");
    }
  }
  return {};
}

// Sizes and strides of outputs that are not allocated yet. A std::optional of it would zero all strides.
class PlannedOutputs {
 public:
  PlannedOutputs() {}

  void describe(const Operator& op, const Rule& rule, Call* call) {
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const Shape& shape = rule.outputs[i];
      int64_t* const strides = strides_[i];
      for (int64_t d = shape.rank - 1, stride = 1; d >= 0; stride *= std::max<int64_t>(shape.dims[d--], 1))
        strides[d] = stride;
      call->outputs[i] = {nullptr, shape.dtype, shape.rank, shape.dims, strides};
    }
  }

 private:
  int64_t strides_[kMaxOutputs][kMaxRank];
};

}  // namespace

void call(const Operator& op, StableIValue* stack) try {
  Arguments arguments(op, stack);
  const Device device = arguments.first_device(op);
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (device.type == aoti_torch_device_type_cuda()) guard.emplace(device.index);
  arguments.look_at_tensors(op);
  TorchRule rule(op, arguments);
  require(rule.infer());
  require_device(op, arguments, device);
  require(check_shared(op, arguments));

  Call call(op);
  Copies copies(device);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Input& input = op.inputs[i];
    call.scalars[i] = arguments.scalars[i];
    const bool is_list = input.kind == Kind::list;
    const int64_t count = is_list ? arguments.counts[i] : arguments.inputs[i] ? 1 : 0;
    if (count == 0) continue;
    Tensor* const tensors = is_list ? arguments.items.tensors.data() + arguments.first[i] : &arguments.inputs[i];
    View* const views = is_list ? arguments.items.views.data() + arguments.first[i] : &arguments.views[i];
    for (int64_t item = 0; item < count; ++item) {
      if (input.updated) require(check_distinct(input, op, views[item]));
      copies.make_readable(input, tensors[item], &views[item]);
    }
    call.inputs[i] = views;
    if (is_list) call.counts[i] = count;
  }
  PartialArray<Tensor, kMaxOutputs> outputs(op.outputs.size());
  Tensor workspace;
  const bool on_gpu = device.type == aoti_torch_device_type_cuda();
  const auto allocate_outputs = [&] {
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const Shape& shape = rule.outputs[i];
      outputs[i] = empty(shape.dtype, shape.dims, shape.rank, device, on_gpu && op.outputs[i].padded);
      call.outputs[i] = view_of(outputs[i]);
    }
  };
  const Parts* const parts = (on_gpu ? op.cuda : op.cpu) ? parts_of(op) : nullptr;
  PlannedOutputs planned;
  if (parts)
    planned.describe(op, rule, &call);
  else
    allocate_outputs();
  call.attributes = arguments.attributes.data();
  call.context = context_for(device);
  const int64_t bytes = op.workspace ? static_cast<int64_t>(op.workspace(call)) : 0;
  if (bytes > 0) {
    workspace = empty(DType::u8, &bytes, 1, device);
    call.workspace = view_of(workspace).data;
  }
  const auto release_inputs = [&] {
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (parts->released >> i & 1) arguments.inputs[i].reset();
    allocate_outputs();
  };
  require(parts ? parts->run(call, release_inputs) : run(op, call));
  copies.copy_back();
  for (size_t i = 0; i < op.outputs.size(); ++i) stack[i] = torch::stable::detail::from(outputs[i].release());
} catch (const std::bad_alloc&) {
  throw std::runtime_error(out_of_memory(op));
}

}  // namespace fusedops::torch_binding
