#include "ops/normalization/layer_norm.h"
#include "ops/normalization/norm_float8.cuh"
#include "ops/normalization/rms_norm.h"

namespace fusedops {

Status rms_norm_float8_cuda(const Call& call) { return cuda::norm_float8</*kCentered=*/false>(call, kRmsNormFloat8); }

Status add_rms_norm_float8_cuda(const Call& call) {
  return cuda::norm_float8</*kCentered=*/false>(call, kAddRmsNormFloat8);
}

Status layer_norm_float8_cuda(const Call& call) {
  return cuda::norm_float8</*kCentered=*/true>(call, kLayerNormFloat8);
}

}  // namespace fusedops
