#include "ops/attention/attention_sm80_backward.cuh"
#include "ops/attention/attention_sm80_forward.cuh"

namespace fusedops::cuda {

Status attention_sm80_general_f16(const Attention& call, const Context& context) {
  return sm80_forward<f16, /*kGeneral=*/true>(call, context);
}

Status attention_sm80_general_backward_f16(const Attention& call, void* workspace, const Context& context) {
  return sm80_backward<f16, /*kGeneral=*/true>(call, workspace, context);
}

}  // namespace fusedops::cuda
