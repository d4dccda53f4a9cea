#include "ops/attention/attention_sm90_large_heads_forward.cuh"

namespace fusedops::cuda {

Status attention_large_heads_sm90(const Attention& call, void* workspace, const Context& context) {
  return call.dtype == DType::f16 ? sm90::large_heads_forward<f16>(call, workspace, context)
                                  : sm90::large_heads_forward<bf16>(call, workspace, context);
}

}  // namespace fusedops::cuda
