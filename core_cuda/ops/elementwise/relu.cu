#include "core/cuda/elementwise.cuh"
#include "ops/elementwise/relu.h"

namespace fusedops {

Status relu_cuda(const Call& call) { return cuda::elementwise(call, Relu{}, Relu::kX); }

Status relu_backward_cuda(const Call& call) {
  return cuda::elementwise(call, ReluBackward{}, ReluBackward::kDy, ReluBackward::kY);
}

}  // namespace fusedops
