#include "ops/attention/attention_sm90_backward.cuh"

namespace fusedops::cuda::sm90 {

Status probe_backward(const Attention& call, void* workspace, const Context& context) {
  return launch_backward<Backward<cutlass::bfloat16_t, 64, 128, 128, true>>(call, workspace, context);
}

}  // namespace fusedops::cuda::sm90
