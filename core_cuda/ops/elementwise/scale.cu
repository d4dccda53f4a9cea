#include "core/cuda/elementwise.cuh"
#include "ops/elementwise/scale.h"

namespace fusedops {

Status scale_cuda(const Call& call) { return cuda::elementwise(call, Scale{scalar(call, Scale::kFactor)}, Scale::kX); }

}  // namespace fusedops
