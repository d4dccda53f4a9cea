// What the dispatcher calls for torch.ops.fusedops.<op> where autograd is on: once for each transform of torch.func
// that differentiates, with tensors of that level alone.
#pragma once

#include <ATen/core/boxing/BoxedKernel.h>

#include <memory>
#include <utility>

#include "row.h"

namespace fusedops::torch_autograd {

class Kernel : public c10::OperatorKernel {
 public:
  explicit Kernel(std::shared_ptr<const Row> row) : row_(std::move(row)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const;

 private:
  std::shared_ptr<const Row> row_;
};

}  // namespace fusedops::torch_autograd
