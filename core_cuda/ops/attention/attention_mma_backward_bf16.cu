#include "ops/attention/attention_backward_mma.cuh"

namespace fusedops::cuda {

Status attention_mma_backward_bf16(const Attention& call, void* workspace, const Context& context) {
  return backward_mma<bf16>(call, workspace, context);
}

}  // namespace fusedops::cuda
