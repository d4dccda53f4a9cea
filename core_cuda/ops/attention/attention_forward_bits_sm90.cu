#include "ops/attention/attention_sm90_forward.cuh"

namespace fusedops::cuda {

Status attention_bits_sm90(const Attention& call, void* workspace, const Context& context) {
  return call.dtype == DType::f16 ? sm90::forward<cutlass::half_t, /*kBits=*/true>(call, workspace, context)
                                  : sm90::forward<cutlass::bfloat16_t, /*kBits=*/true>(call, workspace, context);
}

}  // namespace fusedops::cuda
