#include "core/cuda/elementwise.cuh"
#include "ops/elementwise/add.h"

namespace fusedops {

Status add_cuda(const Call& call) { return cuda::elementwise<kAdd>(call, Add{}); }

}  // namespace fusedops
