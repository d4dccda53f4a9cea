#include "ops/attention/attention_sm90_forward.cuh"

namespace fusedops::cuda {

Status attention_bits_sm90(const Attention& call, const Context& context) {
  return call.dtype == DType::f16 ? sm90::forward<cutlass::half_t, /*kBits=*/true>(call, context)
                                  : sm90::forward<cutlass::bfloat16_t, /*kBits=*/true>(call, context);
}

}  // namespace fusedops::cuda
