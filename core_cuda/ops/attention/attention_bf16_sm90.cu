#include "ops/attention/attention_sm90_forward.cuh"

namespace fusedops::cuda::sm90 {

Status probe(const Attention& call, const Context& context) {
  return launch_forward<Forward<cutlass::bfloat16_t, 128, 128, 128, 2, true>>(call, context);
}

}  // namespace fusedops::cuda::sm90
