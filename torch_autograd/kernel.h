// The autograd kernel of torch.ops.fusedops.<op>. The dispatcher calls it once per differentiating transform of
// torch.func, with tensors of that level only.
#pragma once

#include <ATen/core/boxing/BoxedKernel.h>

#include <memory>
#include <utility>

#include "bound_operator.h"

namespace fusedops::torch_autograd {

class Kernel : public c10::OperatorKernel {
 public:
  explicit Kernel(std::shared_ptr<const BoundOperator> bound) : bound_(std::move(bound)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const;

 private:
  std::shared_ptr<const BoundOperator> bound_;
};

}  // namespace fusedops::torch_autograd
