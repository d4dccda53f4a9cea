#include "ops/attention/attention_sm90_large_heads_backward.cuh"

namespace fusedops::cuda {

Status attention_large_heads_sm90_backward(const Attention& call, void* workspace, const Context& context) {
  return call.dtype == DType::f16 ? sm90::large_heads_backward<f16>(call, workspace, context)
                                  : sm90::large_heads_backward<bf16>(call, workspace, context);
}

}  // namespace fusedops::cuda
