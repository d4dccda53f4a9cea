#include "core/cuda/elementwise.cuh"
#include "ops/elementwise/relu.h"

namespace fusedops {

Status relu_cuda(const Call& call) { return cuda::elementwise<kRelu>(call, Relu{}); }

Status relu_backward_cuda(const Call& call) { return cuda::elementwise<kReluBackward>(call, ReluBackward{}); }

}  // namespace fusedops
