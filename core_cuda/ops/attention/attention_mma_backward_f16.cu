#include "ops/attention/attention_backward_mma.cuh"

namespace fusedops::cuda {

Status attention_mma_backward_f16(const Attention& call, void* workspace, const Context& context) {
  return backward_mma<f16>(call, workspace, context);
}

}  // namespace fusedops::cuda
