#include "negative.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "tensors.h"

namespace fusedops::torch_binding {

using torch::stable::detail::to;

namespace {

void dispatch(const std::string& name, StableIValue* stack) {
  require(torch_call_dispatcher(name.c_str(), "", stack, TORCH_ABI_VERSION), ("call " + name).c_str());
}

Tensor shared(const Tensor& tensor) {
  AtenTensorHandle handle = nullptr;
  require(aoti_torch_new_tensor_handle(tensor.get(), &handle), "share a tensor");
  return Tensor(handle);
}

// The tensor itself, or a copy of one that has the negative bit.
Tensor resolved(const Tensor& tensor) {
  StableIValue stack[] = {torch::stable::detail::from(shared(tensor).release())};
  dispatch("aten::resolve_neg", stack);
  return Tensor(to<AtenTensorHandle>(stack[0]));
}

std::vector<Tensor> take(Kind kind, StableIValue argument) {
  std::vector<AtenTensorHandle> handles;
  if (kind == Kind::list)
    handles = to<std::vector<AtenTensorHandle>>(argument);
  else if (kind == Kind::tensor)
    handles.push_back(to<AtenTensorHandle>(argument));
  else if (const auto handle = to<std::optional<AtenTensorHandle>>(argument))
    handles.push_back(*handle);
  std::vector<Tensor> tensors;
  for (const AtenTensorHandle handle : handles) tensors.emplace_back(handle);
  return tensors;
}

StableIValue give(Kind kind, std::vector<Tensor> tensors) {
  std::vector<AtenTensorHandle> handles;
  for (Tensor& tensor : tensors) handles.push_back(tensor.release());
  if (kind == Kind::list) return torch::stable::detail::from(handles);
  if (kind == Kind::tensor) return torch::stable::detail::from(handles[0]);
  const auto handle = handles.empty() ? std::nullopt : std::optional(handles[0]);
  return torch::stable::detail::from(handle);
}

}  // namespace

bool has_negative_kernel(const Operator& op) {
  return std::any_of(op.inputs.begin(), op.inputs.end(), [](const Input& input) { return input.updated; });
}

void call_negative(const Operator& op, StableIValue* stack) {
  std::vector<std::vector<Tensor>> inputs;  // takes ownership of all before anything may throw
  for (size_t i = 0; i < op.inputs.size(); ++i) inputs.push_back(take(op.inputs[i].kind, stack[i]));

  std::vector<std::pair<Tensor, Tensor>> mutated;  // mutated tensors, each with its copy
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    for (Tensor& tensor : inputs[i]) {
      Tensor copy = resolved(tensor);
      std::swap(tensor, copy);
      if (op.inputs[i].updated) mutated.emplace_back(std::move(copy), shared(tensor));
    }
  }

  for (size_t i = 0; i < op.inputs.size(); ++i) stack[i] = give(op.inputs[i].kind, std::move(inputs[i]));
  dispatch(std::string("fusedops::") + op.name, stack);
  for (const auto& [tensor, copy] : mutated)  // copy_ to itself does nothing
    require(aoti_torch_copy_(tensor.get(), copy.get(), /*non_blocking=*/0), "copy a tensor");
}

}  // namespace fusedops::torch_binding
