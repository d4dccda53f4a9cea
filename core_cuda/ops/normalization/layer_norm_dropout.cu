#include "ops/normalization/norm_backward.cuh"
#include "ops/normalization/norm_forward.cuh"

namespace fusedops {

Status add_layer_norm_dropout_cuda(const Call& call) {
  return cuda::norm_forward<kAddLayerNorm, /*kDropout=*/true>(call);
}

Status layer_norm_dropout_backward_cuda(const Call& call) {
  return cuda::norm_backward<kLayerNormBackward, /*kDropout=*/true>(call);
}

}  // namespace fusedops
