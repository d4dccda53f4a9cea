#include "ops/normalization/norm_backward.cuh"
#include "ops/normalization/norm_forward.cuh"
#include "ops/normalization/rms_norm.h"

namespace fusedops {
namespace {

Status forward(const Call& call, const NormForwardPlaces& places) {
  return dispatch(call.inputs[places.x]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return cuda::norm_forward</*kCentered=*/false, /*kDropout=*/false>(NormForward<T>(call, places), call.context);
  });
}

}  // namespace

Status rms_norm_cuda(const Call& call) { return forward(call, kRmsNorm); }

Status add_rms_norm_cuda(const Call& call) {
  const bool drops = call.inputs[input_of(kAddRmsNorm, "seed")];
  return drops ? add_rms_norm_dropout_cuda(call) : forward(call, kAddRmsNorm);
}

Status rms_norm_backward_cuda(const Call& call) {
  if (call.inputs[input_of(kRmsNormBackward, "seed")]) return rms_norm_dropout_backward_cuda(call);
  return dispatch(call.inputs[input_of(kRmsNormBackward, "x")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return cuda::norm_backward</*kCentered=*/false, /*kDropout=*/false>(NormBackward<T>(call, kRmsNormBackward),
                                                                        call.context);
  });
}

}  // namespace fusedops
