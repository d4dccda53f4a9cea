#include "ops/attention/attention_sm90_forward.cuh"

namespace fusedops::cuda {

Status attention_alibi_sm90(const Attention& call, void* workspace, const Context& context) {
  return call.dtype == DType::f16
             ? sm90::forward<f16, /*kMasked=*/false, sm90::Terms::alibi>(call, workspace, context)
             : sm90::forward<bf16, /*kMasked=*/false, sm90::Terms::alibi>(call, workspace, context);
}

}  // namespace fusedops::cuda
