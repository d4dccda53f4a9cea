#include "ops/attention/attention_simple.cuh"

namespace fusedops::cuda {

Status attention_simple(const Attention& call, const Context& context) {
  return simple_forward</*kDropout=*/false>(call, context);
}

Status attention_simple_backward(const Attention& call, void* workspace, const Context& context) {
  return simple_backward</*kDropout=*/false>(call, workspace, context);
}

}  // namespace fusedops::cuda
