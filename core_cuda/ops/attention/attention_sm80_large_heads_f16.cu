#include "ops/attention/attention_sm80_large_heads.cuh"

namespace fusedops::cuda {

Status attention_large_heads_f16(const Attention& call, const Context& context) {
  return large_heads_forward<f16>(call, context);
}

Status attention_large_heads_backward_f16(const Attention& call, void* workspace, const Context& context) {
  return large_heads_backward<f16>(call, workspace, context);
}

}  // namespace fusedops::cuda
