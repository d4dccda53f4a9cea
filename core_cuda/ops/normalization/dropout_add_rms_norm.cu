#include "ops/normalization/norm_backward.cuh"
#include "ops/normalization/norm_forward.cuh"
#include "ops/normalization/rms_norm.h"

namespace fusedops {

Status dropout_add_rms_norm_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kDropoutAddRmsNorm, "x")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return cuda::norm_forward</*kCentered=*/false, /*kDropout=*/true>(NormForward<T>(call, kDropoutAddRmsNorm),
                                                                      call.context);
  });
}

Status dropout_add_rms_norm_backward_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kDropoutAddRmsNormBackward, "s")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return cuda::norm_backward</*kCentered=*/false, /*kDropout=*/true>(
        NormBackward<T>(call, kDropoutAddRmsNormBackward), call.context);
  });
}

}  // namespace fusedops
