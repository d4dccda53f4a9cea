#include "ops/normalization/layer_norm.h"
#include "ops/normalization/norm_backward.cuh"
#include "ops/normalization/norm_forward.cuh"

namespace fusedops {

Status add_layer_norm_dropout_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kAddLayerNorm, "x")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return cuda::norm_forward</*kCentered=*/true, /*kDropout=*/true>(NormForward<T>(call, kAddLayerNorm), call.context);
  });
}

Status layer_norm_dropout_backward_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kLayerNormBackward, "x")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return cuda::norm_backward</*kCentered=*/true, /*kDropout=*/true>(NormBackward<T>(call, kLayerNormBackward),
                                                                      call.context);
  });
}

}  // namespace fusedops
