#include "ops/attention/attention_sm90_backward.cuh"

namespace fusedops::cuda {

Status attention_bias_sm90_backward(const Attention& call, void* workspace, const Context& context) {
  return call.dtype == DType::f16 ? sm90::backward<f16, /*kMasked=*/true, sm90::Terms::bias>(call, workspace, context)
                                  : sm90::backward<bf16, /*kMasked=*/true, sm90::Terms::bias>(call, workspace, context);
}

}  // namespace fusedops::cuda
