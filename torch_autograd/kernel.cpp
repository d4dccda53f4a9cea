#include "kernel.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include "node.h"

namespace fusedops::torch_autograd {
namespace {

c10::ArrayRef<c10::IValue> last(const torch::jit::Stack& stack, size_t count) {
  return c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - count);
}

struct Watched {
  Mask wanted = 0;            // inputs that require a gradient
  bool has_tangents = false;  // True in forward mode
};

Watched watched(const BoundOperator& bound, c10::ArrayRef<c10::IValue> arguments) {
  Watched found;
  for (size_t i = 0; i < bound.op.inputs.size(); ++i) {
    if (!arguments[i].isTensor()) continue;
    const at::Tensor& tensor = arguments[i].toTensor();
    if (tensor.requires_grad()) found.wanted |= bit(i);
    found.has_tangents |= tensor._fw_grad(/*level=*/0).defined();
  }
  if (!c10::GradMode::is_enabled()) found.wanted = 0;
  return found;
}

void call_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

// fusedops/torch/autograd.py registers its kernel for the alias key Autograd. library.cpp replaces it only for
// AutogradCPU and AutogradCUDA, so AutogradOther still has it.
void call_python(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  op.redispatchBoxed((keys & c10::after_autograd_keyset).add(c10::DispatchKey::AutogradOther), stack);
}

}  // namespace

// Calls body(tensor) for an argument that is a tensor, or for each tensor of a list.
template <class Body>
void for_each_tensor(const c10::IValue& argument, Body&& body) {
  if (argument.isTensor()) body(argument.toTensor());
  if (argument.isTensorList())
    for (const c10::IValue& item : argument.toListRef()) body(item.toTensor());
}

// Calls an operator without a derivative. Mutated inputs get a new version, so that autograd detects a backward that
// needs the old values.
void call_not_differentiable(const BoundOperator& bound, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                             torch::jit::Stack* stack) {
  const auto arguments = last(*stack, bound.arguments);
  std::vector<at::Tensor> mutated;  // the call takes them from the lists
  for (size_t i = 0; i < bound.op.inputs.size(); ++i) {
    const Input& input = bound.op.inputs[i];
    if (c10::GradMode::is_enabled())
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        TORCH_CHECK(!tensor.requires_grad(), "fusedops.", public_name(bound.op), ": ", input.name,
                    " has no gradient; call it under torch.no_grad()");
      });
    if (!input.updated) continue;
    mutated.reserve(mutated.size() + (arguments[i].isTensorList() ? arguments[i].toListRef().size() : 1));
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) { mutated.push_back(tensor); });
  }
  call_below(op, keys, stack);
  for (const at::Tensor& tensor : mutated)
    if (!tensor.is_inference()) torch::autograd::impl::bump_version(tensor);
}

void Kernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
  if (!bound_->has_derivative) return call_not_differentiable(*bound_, op, keys, stack);
  const auto arguments = last(*stack, bound_->arguments);
  const auto [wanted, has_tangents] = watched(*bound_, arguments);
  if (!wanted && !has_tangents) return call_below(op, keys, stack);
  if (has_tangents || bound_->steps.empty()) return call_python(op, keys, stack);
  const Backward::Pointer node = Backward::make(*bound_, arguments, wanted);
  call_below(op, keys, stack);
  Backward::finish(node, last(*stack, bound_->op.outputs.size()));
}

}  // namespace fusedops::torch_autograd
