#include "ops/attention/attention_sm90_forward.cuh"
#include "ops/attention/attention_sm90_paths.h"

namespace fusedops::cuda::sm90 {

Status forward_bf16(const Attention& call, const Context& context) {
  return forward<cutlass::bfloat16_t>(call, context);
}

}  // namespace fusedops::cuda::sm90
