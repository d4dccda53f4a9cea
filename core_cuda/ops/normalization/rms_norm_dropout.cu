#include "ops/normalization/norm_backward.cuh"
#include "ops/normalization/norm_forward.cuh"
#include "ops/normalization/rms_norm.h"

namespace fusedops {

Status add_rms_norm_dropout_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kAddRmsNorm, "x")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return cuda::norm_forward</*kCentered=*/false, /*kDropout=*/true>(NormForward<T>(call, kAddRmsNorm), call.context);
  });
}

Status rms_norm_dropout_backward_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kRmsNormBackward, "x")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return cuda::norm_backward</*kCentered=*/false, /*kDropout=*/true>(NormBackward<T>(call, kRmsNormBackward),
                                                                       call.context);
  });
}

}  // namespace fusedops
