// What autograd keeps of one call of an operator: the node of its backward graph. It is made as torch's generated code
// makes its own, since torch::autograd::Function does not work under torch.func.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "row.h"

namespace fusedops::torch_autograd {

class Backward : public torch::autograd::Node {
 public:
  // A std::shared_ptr before torch 2.13, and a c10::intrusive_ptr since.
  using Pointer = decltype(std::declval<Node&>().getptr());
  using variable_list = torch::autograd::variable_list;

  // Before the call: keeps what the gradients of `wanted` inputs read of its arguments.
  static Pointer make(const Row& row, c10::ArrayRef<c10::IValue> arguments, Mask wanted);
  Backward(const Row& row, c10::ArrayRef<c10::IValue> arguments, Mask wanted);

  // After it: gives the outputs their history, and keeps what is read of them.
  static void finish(const Pointer& node, c10::ArrayRef<c10::IValue> outputs);

  std::string name() const override { return row_.node; }
  void release_variables() override;

  // For torch's compiled autograd, in compiled.cpp.
  void compiled_args(torch::autograd::CompiledNodeArgs& args) const override;
  variable_list apply_with_saved(const variable_list& upstream, torch::autograd::SwapSavedVariables& swap) override;

 private:
  variable_list apply(variable_list&& upstream) override;

  // The inputs whose gradients this run of the engine asks for.
  Mask wanted() const;

  const Row& row_;
  uint64_t read_ = 0;  // which of Row::saved
  std::vector<torch::autograd::SavedVariable> saved_;
  std::vector<c10::IValue> rest_;
};

}  // namespace fusedops::torch_autograd
