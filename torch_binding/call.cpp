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
  double scalars[kMaxInputs] = {};
  Value attributes[kMaxAttributes];

  Arguments(const Operator& op, const StableIValue* stack) {
    for (size_t i = 0; i < op.inputs.size(); ++i, ++stack)
      inputs[i] = op.inputs[i].kind == Kind::tensor ? to<Tensor>(*stack) : to<std::optional<Tensor>>(*stack);
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (op.inputs[i].kind == Kind::scalar) scalars[i] = to<double>(*stack++);
    for (size_t i = 0; i < op.attributes.size(); ++i) read(op.attributes[i].type, *stack++, &attributes[i]);
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

// The device that the call runs on. All tensors must be there.
Device common_device(const Operator& op, const Arguments& arguments) {
  const size_t first = first_tensor(op);
  const Device device = device_of(*arguments.inputs[first]);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (!arguments.inputs[i]) continue;
    const Device other = device_of(*arguments.inputs[i]);
    if (!(other == device))
      require(Status::error("fusedops.", op.name, ": ", op.inputs[i].name, " must be on ", op.inputs[first].name,
                            "'s device, ", name_of(device), "; got ", name_of(other)));
  }
  return device;
}

// Copies a tensor to contiguous memory if the operator cannot read it as it lies.
void make_readable(Tensor& tensor, Layout layout, Device device, View* view) {
  if (has_layout(*view, layout)) return;
  tensor = contiguous(tensor, *view, device);
  *view = view_of(tensor);
}

}  // namespace

void call(const Operator& op, StableIValue* stack) {
  Arguments arguments(op, stack);
  const Device device = common_device(op, arguments);

  View views[kMaxInputs];
  Rule rule(op, arguments.attributes);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (!arguments.inputs[i]) continue;
    views[i] = view_of(*arguments.inputs[i]);
    require(rule.check_rank(static_cast<int>(i), views[i].rank));
    describe(views[i], &rule.inputs[i]);
  }
  require(rule.infer());

  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (device.type == aoti_torch_device_type_cuda()) guard.emplace(device.index);

  Call call(op);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    call.scalars[i] = arguments.scalars[i];
    if (!arguments.inputs[i]) continue;
    make_readable(*arguments.inputs[i], op.inputs[i].layout, device, &views[i]);
    call.inputs[i] = &views[i];
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
  for (size_t i = 0; i < op.outputs.size(); ++i) stack[i] = from(*outputs[i]);
}

}  // namespace fusedops::torch_binding
