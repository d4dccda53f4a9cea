#include "ops/attention/attention_sm90_forward.cuh"

namespace fusedops::cuda {

Status attention_sm90(const Attention& call, const Context& context) {
  using sm90::forward;
  const bool plain = sm90::is_plain(call);
  if (call.dtype == DType::f16) return forward<cutlass::half_t, true>(call, context);
  return plain ? forward<cutlass::bfloat16_t, true>(call, context) : forward<cutlass::bfloat16_t, false>(call, context);
}

}  // namespace fusedops::cuda
