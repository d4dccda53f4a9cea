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
  Mask wanted = 0;        // inputs that require a gradient
  bool tangents = false;  // whether one of them has a tangent: forward mode
};

Watched watched(const Row& row, c10::ArrayRef<c10::IValue> arguments) {
  Watched found;
  for (size_t i = 0; i < row.op.inputs.size(); ++i) {
    if (!arguments[i].isTensor()) continue;
    const at::Tensor& tensor = arguments[i].toTensor();
    if (tensor.requires_grad()) found.wanted |= bit(i);
    found.tangents |= tensor._fw_grad(/*level=*/0).defined();
  }
  if (!c10::GradMode::is_enabled()) found.wanted = 0;
  return found;
}

void call_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

// fusedops/torch/autograd.py registers its kernel for the alias Autograd. library.cpp replaces it for AutogradCPU and
// AutogradCUDA alone, so that AutogradOther still has it.
void call_python(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  op.redispatchBoxed((keys & c10::after_autograd_keyset).add(c10::DispatchKey::AutogradOther), stack);
}

}  // namespace

// Calls body(tensor) for the tensor that an argument is, or those of a list.
template <class Body>
void for_each_tensor(const c10::IValue& argument, Body&& body) {
  if (argument.isTensor()) body(argument.toTensor());
  if (argument.isTensorList())
    for (const c10::IValue& item : argument.toListRef()) body(item.toTensor());
}

// An operator that has no derivative. What it updates gets a new version, so that autograd notices if a backward was
// to read the old one.
void call_plainly(const Row& row, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = last(*stack, row.arguments);
  std::vector<at::Tensor> updated;  // torch moves them out of the lists
  for (size_t i = 0; i < row.op.inputs.size(); ++i) {
    const Input& input = row.op.inputs[i];
    if (c10::GradMode::is_enabled())
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        TORCH_CHECK(!tensor.requires_grad(), "fusedops.", row.op.name, ": ", input.name,
                    " has no gradient; call it under torch.no_grad()");
      });
    if (!input.updated) continue;
    updated.reserve(updated.size() + (arguments[i].isTensorList() ? arguments[i].toListRef().size() : 1));
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) { updated.push_back(tensor); });
  }
  call_below(op, keys, stack);
  for (const at::Tensor& tensor : updated)
    if (!tensor.is_inference()) torch::autograd::impl::bump_version(tensor);
}

void Kernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
  if (row_->is_plain) return call_plainly(*row_, op, keys, stack);
  const auto arguments = last(*stack, row_->arguments);
  const auto [wanted, tangents] = watched(*row_, arguments);
  if (!wanted && !tangents) return call_below(op, keys, stack);
  if (tangents || row_->steps.empty()) return call_python(op, keys, stack);
  const Backward::Pointer node = Backward::make(*row_, arguments, wanted);
  call_below(op, keys, stack);
  Backward::finish(node, last(*stack, row_->op.outputs.size()));
}

}  // namespace fusedops::torch_autograd
