#include "ops/normalization/norm_backward.cuh"
#include "ops/normalization/norm_forward.cuh"

namespace fusedops {

Status add_rms_norm_dropout_cuda(const Call& call) { return cuda::norm_forward<kAddRmsNorm, /*kDropout=*/true>(call); }

Status rms_norm_dropout_backward_cuda(const Call& call) {
  return cuda::norm_backward<kRmsNormBackward, /*kDropout=*/true>(call);
}

}  // namespace fusedops
