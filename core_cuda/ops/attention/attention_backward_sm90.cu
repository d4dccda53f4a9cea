#include "ops/attention/attention_sm90_backward.cuh"

namespace fusedops::cuda {

Status attention_sm90_backward(const Attention& call, void* workspace, const Context& context) {
  using sm90::backward;
  const bool plain = sm90::is_plain(call);
  if (call.dtype == DType::f16) return backward<cutlass::half_t, true>(call, workspace, context);
  return plain ? backward<cutlass::bfloat16_t, true>(call, workspace, context)
               : backward<cutlass::bfloat16_t, false>(call, workspace, context);
}

}  // namespace fusedops::cuda
