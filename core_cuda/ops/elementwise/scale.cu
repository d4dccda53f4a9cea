#include "core/cuda/elementwise.cuh"
#include "ops/elementwise/scale.h"

namespace fusedops {

Status scale_cuda(const Call& call) {
  return cuda::elementwise<kScale>(call, Scale{scalar(call, input_of(kScale, "factor"))});
}

}  // namespace fusedops
