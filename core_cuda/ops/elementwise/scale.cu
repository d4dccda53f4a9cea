#include "core/cuda/elementwise.cuh"
#include "ops/elementwise/scale.h"

namespace fusedops {

Status scale_cuda(const Call& call) {
  return cuda::elementwise<kScale>(call, Scale{scalar(call, kScale.input("factor"))});
}

}  // namespace fusedops
