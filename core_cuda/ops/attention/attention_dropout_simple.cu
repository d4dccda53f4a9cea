#include "ops/attention/attention_simple.cuh"

namespace fusedops::cuda {

Status attention_dropout_simple(const Attention& call, const Context& context) {
  return simple_forward</*kDropout=*/true>(call, context);
}

Status attention_dropout_simple_backward(const Attention& call, void* workspace, const Context& context) {
  return simple_backward</*kDropout=*/true>(call, workspace, context);
}

}  // namespace fusedops::cuda
