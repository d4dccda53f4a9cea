#include "core/elementwise.cuh"
#include "ops/relu.h"

namespace fusedops {

Status relu_cuda(const Call& call) { return cuda::elementwise(call, Relu{}, 0); }

Status relu_backward_cuda(const Call& call) { return cuda::elementwise(call, ReluBackward{}, 0, 1); }

}  // namespace fusedops
