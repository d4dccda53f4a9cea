#include "ops/attention/softmax_rows.cuh"

namespace fusedops {

Status softmax_cuda(const Call& call) {
  if (call.inputs[input_of(kSoftmax, "bias")]) return cuda::biased_softmax(call);
  return dispatch(call.outputs[output_of(kSoftmax, "y")].dtype, [&](auto tag) {
    const Softmax<typename decltype(tag)::type> rows(call);
    const View* mask = call.inputs[input_of(kSoftmax, "mask")];
    if (!mask) return cuda::softmax_rows(rows, cuda::NoMask(), call.context);
    return cuda::softmax_rows(rows, BroadcastMask(*mask, *call.inputs[input_of(kSoftmax, "x")]), call.context);
  });
}

}  // namespace fusedops
