#include "ops/attention/attention_sm80_backward.cuh"

namespace fusedops::cuda {

Status attention_sm80_backward_f16(const Attention& call, void* workspace, const Context& context) {
  return sm80_backward<f16>(call, workspace, context);
}

}  // namespace fusedops::cuda
