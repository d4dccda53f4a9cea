#include "call.h"

#include <torch/csrc/stable/accelerator.h>

#include <optional>
#include <vector>

#include "allocation.h"
#include "context.h"
#include "errors.h"
#include "tensors.h"

namespace fusedops::torch_binding {

using torch::stable::Tensor;
using torch::stable::detail::from;
using torch::stable::detail::to;

namespace {

struct Arguments {
  std::optional<Tensor> inputs[kMaxInputs];
  std::vector<Tensor> items;      // of all lists, one list behind the other
  size_t first[kMaxInputs] = {};  // of a list, among them
  int64_t counts[kMaxInputs] = {};
  double scalars[kMaxInputs] = {};
  Value attributes[kMaxAttributes];

  Arguments(const Operator& op, const StableIValue* stack) {
    for (size_t i = 0; i < op.inputs.size(); ++i, ++stack) {
      if (op.inputs[i].kind == Kind::list)
        read_list(i, *stack);
      else
        inputs[i] = op.inputs[i].kind == Kind::tensor ? to<Tensor>(*stack) : to<std::optional<Tensor>>(*stack);
    }
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (op.inputs[i].kind == Kind::scalar) scalars[i] = to<double>(*stack++);
    for (size_t i = 0; i < op.attributes.size(); ++i) read(op.attributes[i].type, *stack++, &attributes[i]);
  }

  void read_list(size_t place, StableIValue list) {
    std::vector<Tensor> tensors = to<std::vector<Tensor>>(list);
    first[place] = items.size();
    counts[place] = static_cast<int64_t>(tensors.size());
    items.insert(items.end(), std::make_move_iterator(tensors.begin()), std::make_move_iterator(tensors.end()));
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

// What the core sees of the arguments: views of the tensors.
class TorchRule : public Rule {
 public:
  TorchRule(const Operator& op, const Arguments& arguments) : Rule(op, arguments.attributes), items_(arguments) {
    for (const Tensor& tensor : arguments.items) of_items.push_back(view_of(tensor));
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const int input = static_cast<int>(i);
      counts[i] = arguments.counts[i];
      for (int64_t item = 0; item < counts[i]; ++item) require(check_rank(input, item_view(input, item).rank, item));
      if (!arguments.inputs[i]) continue;
      views[i] = view_of(*arguments.inputs[i]);
      require(check_rank(input, views[i].rank));
      describe(views[i], &inputs[i]);
    }
  }

  void read(int input, int64_t item, Shape* shape) override { describe(item_view(input, item), shape); }

  View views[kMaxInputs];
  std::vector<View> of_items;

 private:
  const View& item_view(int input, int64_t item) const {
    return of_items[items_.first[input] + static_cast<size_t>(item)];
  }

  const Arguments& items_;
};

// The device that the call runs on. All tensors must be there.
Device common_device(const Operator& op, const Arguments& arguments) {
  const auto tensors = [&](size_t i) -> std::span<const Tensor> {
    if (op.inputs[i].kind == Kind::list)
      return std::span(arguments.items).subspan(arguments.first[i], static_cast<size_t>(arguments.counts[i]));
    return {arguments.inputs[i] ? &*arguments.inputs[i] : nullptr, arguments.inputs[i].has_value()};
  };
  const size_t first = first_tensor(op);
  const Device device = device_of(tensors(first)[0]);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    for (size_t item = 0; const Tensor& tensor : tensors(i)) {
      const Device other = device_of(tensor);
      if (!(other == device)) {
        const std::string place = op.inputs[i].kind == Kind::list ? "[" + std::to_string(item) + "]" : "";
        require(Status::error("fusedops.", op.name, ": ", op.inputs[i].name, place, " must be on ",
                              op.inputs[first].name, "'s device, ", name_of(device), "; got ", name_of(other)));
      }
      ++item;
    }
  }
  return device;
}

// Tensors that the operator cannot read as they lie: it gets copies in contiguous memory. What it updates is copied
// back.
class Copies {
 public:
  explicit Copies(Device device) : device_(device) {}

  void make_readable(const Input& input, Tensor& tensor, View* view) {
    if (has_layout(*view, input.layout)) return;
    Tensor copy = contiguous(tensor, *view, device_);
    if (input.updated) updated_.emplace_back(tensor, copy);
    tensor = copy;
    *view = view_of(tensor);
  }

  void copy_back() const {
    for (const auto& [tensor, copy] : updated_)
      require(aoti_torch_copy_(tensor.get(), copy.get(), /*non_blocking=*/0), "copy a tensor");
  }

 private:
  const Device device_;
  std::vector<std::pair<Tensor, Tensor>> updated_;
};

// An update of a tensor whose elements share memory has no meaning.
Status check_expanded(const Input& input, const Operator& op, const View& view) {
  for (int d = 0; d < view.rank; ++d)
    if (view.sizes[d] > 1 && view.strides[d] == 0)
      return Status::error(
          "fusedops.", op.name, ": ", input.name,
          " must have an element of memory for each of its own, to be updated; got an expanded tensor");
  return {};
}

}  // namespace

void call(const Operator& op, StableIValue* stack) {
  Arguments arguments(op, stack);
  TorchRule rule(op, arguments);
  require(rule.infer());
  const Device device = common_device(op, arguments);

  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (device.type == aoti_torch_device_type_cuda()) guard.emplace(device.index);

  Call call(op);
  Copies copies(device);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Input& input = op.inputs[i];
    call.scalars[i] = arguments.scalars[i];
    if (input.kind == Kind::list) {
      View* const views = rule.of_items.data() + arguments.first[i];
      for (int64_t item = 0; item < arguments.counts[i]; ++item) {
        if (input.updated) require(check_expanded(input, op, views[item]));
        copies.make_readable(input, arguments.items[arguments.first[i] + static_cast<size_t>(item)], &views[item]);
      }
      call.inputs[i] = arguments.counts[i] ? views : nullptr;
      call.counts[i] = arguments.counts[i];
    } else if (arguments.inputs[i]) {
      if (input.updated) require(check_expanded(input, op, rule.views[i]));
      copies.make_readable(input, *arguments.inputs[i], &rule.views[i]);
      call.inputs[i] = &rule.views[i];
    }
  }
  std::optional<Tensor> outputs[kMaxOutputs], workspace;
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const Shape& shape = rule.outputs[i];
    outputs[i] = empty(shape.dtype, shape.dims, shape.rank, device);
    call.outputs[i] = view_of(*outputs[i]);
  }
  call.attributes = arguments.attributes;
  call.context = context_for(device);
  const int64_t bytes = op.workspace ? static_cast<int64_t>(op.workspace(call)) : 0;
  if (bytes > 0) {
    workspace = empty(DType::u8, &bytes, 1, device);
    call.workspace = workspace->mutable_data_ptr();
  }
  require(run(op, call));
  copies.copy_back();
  for (size_t i = 0; i < op.outputs.size(); ++i) stack[i] = from(*outputs[i]);
}

}  // namespace fusedops::torch_binding
