#include "ops/normalization/norm_backward.cuh"
#include "ops/normalization/norm_forward.cuh"

namespace fusedops {

Status rms_norm_cuda(const Call& call) { return cuda::norm_forward<kRmsNorm>(call); }

Status add_rms_norm_cuda(const Call& call) {
  const bool drops = call.inputs[input_of(kAddRmsNorm, "seed")];
  return drops ? add_rms_norm_dropout_cuda(call) : cuda::norm_forward<kAddRmsNorm>(call);
}

Status rms_norm_backward_cuda(const Call& call) {
  const bool drops = call.inputs[input_of(kRmsNormBackward, "seed")];
  return drops ? rms_norm_dropout_backward_cuda(call) : cuda::norm_backward<kRmsNormBackward>(call);
}

}  // namespace fusedops
