#include "core/elementwise.cuh"
#include "ops/scale.h"

namespace fusedops {

Status scale_cuda(const Call& call) { return cuda::elementwise(call, Scale{scalar(call, Scale::kFactor)}, Scale::kX); }

}  // namespace fusedops
