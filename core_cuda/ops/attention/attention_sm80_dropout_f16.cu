#include "ops/attention/attention_sm80_backward.cuh"
#include "ops/attention/attention_sm80_forward.cuh"

namespace fusedops::cuda {

Status attention_sm80_dropout_f16(const Attention& call, const Context& context) {
  return sm80_forward<f16, /*kDropout=*/true>(call, context);
}

Status attention_sm80_dropout_backward_f16(const Attention& call, void* workspace, const Context& context) {
  return sm80_backward<f16, /*kDropout=*/true>(call, workspace, context);
}

}  // namespace fusedops::cuda
