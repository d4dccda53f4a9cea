#include "ops/normalization/norm_float8.cuh"

namespace fusedops {

Status rms_norm_float8_cuda(const Call& call) { return cuda::norm_float8<kRmsNormFloat8>(call); }
Status add_rms_norm_float8_cuda(const Call& call) { return cuda::norm_float8<kAddRmsNormFloat8>(call); }
Status layer_norm_float8_cuda(const Call& call) { return cuda::norm_float8<kLayerNormFloat8>(call); }

}  // namespace fusedops
