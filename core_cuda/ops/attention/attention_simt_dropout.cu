#include "ops/attention/attention_simt.cuh"

namespace fusedops::cuda {

Status attention_simt_dropout(const Attention& call, const Context& context) {
  return simt_forward</*kDropout=*/true>(call, context);
}

Status attention_simt_dropout_backward(const Attention& call, void* workspace, const Context& context) {
  return simt_backward</*kDropout=*/true>(call, workspace, context);
}

}  // namespace fusedops::cuda
