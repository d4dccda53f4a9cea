#include "ops/normalization/layer_norm.h"
#include "ops/normalization/norm_backward.cuh"
#include "ops/normalization/norm_forward.cuh"

namespace fusedops {
namespace {

Status forward(const Call& call, const NormForwardPlaces& places) {
  return dispatch(call.inputs[places.x]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return cuda::norm_forward</*kCentered=*/true, /*kDropout=*/false>(NormForward<T>(call, places), call.context);
  });
}

}  // namespace

Status layer_norm_cuda(const Call& call) { return forward(call, kLayerNorm); }

Status add_layer_norm_cuda(const Call& call) {
  const bool drops = call.inputs[input_of(kAddLayerNorm, "seed")];
  return drops ? add_layer_norm_dropout_cuda(call) : forward(call, kAddLayerNorm);
}

Status layer_norm_backward_cuda(const Call& call) {
  if (call.inputs[input_of(kLayerNormBackward, "seed")]) return layer_norm_dropout_backward_cuda(call);
  return dispatch(call.inputs[input_of(kLayerNormBackward, "x")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return cuda::norm_backward</*kCentered=*/true, /*kDropout=*/false>(NormBackward<T>(call, kLayerNormBackward),
                                                                       call.context);
  });
}

}  // namespace fusedops
