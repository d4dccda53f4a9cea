// Evaluates an operator's first derivative: calls of other operators through the dispatcher, so that whoever watches a
// backward (a second derivative, a transform of torch.func, a tracer) sees operators.
#pragma once

#include <torch/csrc/autograd/function.h>

#include "row.h"

namespace fusedops::torch_autograd {

// What a node keeps of the forward. A tensor is undefined where there is none.
class Kept {
 public:
  explicit Kept(c10::ArrayRef<c10::IValue> rest) : rest(rest) {}
  virtual ~Kept() = default;
  virtual at::Tensor tensor(size_t place) = 0;  // of Row::saved

  const c10::ArrayRef<c10::IValue> rest;  // numbers and attributes
};

// The gradient of every input; undefined where it is not wanted or nothing flows.
torch::autograd::variable_list gradients(const Row& row, const torch::autograd::variable_list& upstream, Kept& kept,
                                         Mask wanted);

}  // namespace fusedops::torch_autograd
