#include "ops/attention/attention_sm80_large_heads.cuh"

namespace fusedops::cuda {

Status attention_large_heads_bf16(const Attention& call, const Context& context) {
  return large_heads_forward<bf16>(call, context);
}

Status attention_large_heads_backward_bf16(const Attention& call, void* workspace, const Context& context) {
  return large_heads_backward<bf16>(call, workspace, context);
}

}  // namespace fusedops::cuda
