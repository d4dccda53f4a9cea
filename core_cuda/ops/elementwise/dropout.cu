#include "core/cuda/elementwise.cuh"
#include "ops/elementwise/dropout.h"

namespace fusedops {

Status dropout_cuda(const Call& call) { return cuda::elementwise<kDropout>(call, dropout_of<kDropout>(call)); }

Status dropout_add_cuda(const Call& call) {
  return cuda::elementwise<kDropoutAdd>(call, DropoutAdd{dropout_of<kDropoutAdd>(call)});
}

}  // namespace fusedops
