// The autograd node of one call of an operator. It is made as in torch's generated code, since
// torch::autograd::Function does not work under torch.func.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "bound_operator.h"

namespace fusedops::torch_autograd {

class Backward : public torch::autograd::Node {
 public:
  // A std::shared_ptr before torch 2.13, and a c10::intrusive_ptr since.
  using Pointer = decltype(std::declval<Node&>().getptr());
  using variable_list = torch::autograd::variable_list;

  // Before the call: saves the arguments that the gradients of `wanted` inputs read.
  static Pointer make(const BoundOperator& bound, c10::ArrayRef<c10::IValue> arguments, Mask wanted);
  Backward(const BoundOperator& bound, c10::ArrayRef<c10::IValue> arguments, Mask wanted);

  // After the call: sets the history of the outputs, and saves those that the gradients read.
  static void finish(const Pointer& node, c10::ArrayRef<c10::IValue> outputs);

  std::string name() const override { return bound_.node; }
  void release_variables() override;

  // For compiled autograd: compiled.cpp.
  void compiled_args(torch::autograd::CompiledNodeArgs& args) const override;
  variable_list apply_with_saved(const variable_list& upstream, torch::autograd::SwapSavedVariables& swap) override;

 private:
  variable_list apply(variable_list&& upstream) override;

  // The inputs whose gradients this run of the engine asks for.
  Mask wanted() const;

  const BoundOperator& bound_;
  uint64_t read_ = 0;  // bit mask of BoundOperator::saved
  std::vector<torch::autograd::SavedVariable> saved_;
  std::vector<c10::IValue> rest_;
};

}  // namespace fusedops::torch_autograd
