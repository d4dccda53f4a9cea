#include "ops/normalization/layer_norm.h"
#include "ops/normalization/norm_backward.cuh"
#include "ops/normalization/norm_forward.cuh"

namespace fusedops {

Status dropout_add_layer_norm_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kDropoutAddLayerNorm, "x")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return cuda::norm_forward</*kCentered=*/true, /*kDropout=*/true>(NormForward<T>(call, kDropoutAddLayerNorm),
                                                                     call.context);
  });
}

Status dropout_add_layer_norm_backward_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kDropoutAddLayerNormBackward, "s")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return cuda::norm_backward</*kCentered=*/true, /*kDropout=*/true>(
        NormBackward<T>(call, kDropoutAddLayerNormBackward), call.context);
  });
}

}  // namespace fusedops
