// Evaluates an operator's first derivative by calls of operators through the dispatcher, which second derivatives,
// transforms of torch.func and tracers can observe.
#pragma once

#include <torch/csrc/autograd/function.h>

#include "bound_operator.h"

namespace fusedops::torch_autograd {

// The values that a node saves in the forward. An absent tensor is undefined.
class SavedValues {
 public:
  explicit SavedValues(c10::ArrayRef<c10::IValue> rest) : rest(rest) {}
  virtual ~SavedValues() = default;
  virtual at::Tensor tensor(size_t place) = 0;  // place in BoundOperator::saved

  // The last read of a tensor, which may then be freed.
  virtual at::Tensor take(size_t place) { return tensor(place); }

  const c10::ArrayRef<c10::IValue> rest;  // numbers and attributes
};

// The gradient of every input; undefined if it is not wanted, or if no upstream gradient is defined.
torch::autograd::variable_list gradients(const BoundOperator& bound, torch::autograd::variable_list upstream,
                                         SavedValues& saved, Mask wanted);

}  // namespace fusedops::torch_autograd
