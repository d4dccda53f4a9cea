#include "ops/normalization/norm_backward.cuh"
#include "ops/normalization/norm_forward.cuh"

namespace fusedops {

Status layer_norm_cuda(const Call& call) { return cuda::norm_forward<kLayerNorm>(call); }

Status add_layer_norm_cuda(const Call& call) {
  const bool drops = call.inputs[input_of(kAddLayerNorm, "seed")];
  return drops ? add_layer_norm_dropout_cuda(call) : cuda::norm_forward<kAddLayerNorm>(call);
}

Status layer_norm_backward_cuda(const Call& call) {
  const bool drops = call.inputs[input_of(kLayerNormBackward, "seed")];
  return drops ? layer_norm_dropout_backward_cuda(call) : cuda::norm_backward<kLayerNormBackward>(call);
}

}  // namespace fusedops
