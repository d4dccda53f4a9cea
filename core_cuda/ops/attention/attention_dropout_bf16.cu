#include "ops/attention/attention_backward_mma.cuh"
#include "ops/attention/attention_forward_mma.cuh"

namespace fusedops::cuda {

Status attention_dropout_mma_bf16(const Attention& call, const Context& context) {
  return forward_mma<bf16, /*kDropout=*/true>(call, context);
}

Status attention_dropout_mma_backward_bf16(const Attention& call, void* workspace, const Context& context) {
  return backward_mma<bf16, /*kDropout=*/true>(call, workspace, context);
}

}  // namespace fusedops::cuda
