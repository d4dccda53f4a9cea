#include "ops/attention/attention_simt.cuh"

namespace fusedops::cuda {

Status attention_simt_general(const Attention& call, const Context& context) {
  return simt_forward</*kGeneral=*/true>(call, context);
}

Status attention_simt_general_backward(const Attention& call, void* workspace, const Context& context) {
  return simt_backward</*kGeneral=*/true>(call, workspace, context);
}

}  // namespace fusedops::cuda
