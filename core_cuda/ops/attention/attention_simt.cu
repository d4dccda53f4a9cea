#include "ops/attention/attention_simt.cuh"

namespace fusedops::cuda {

Status attention_simt(const Attention& call, const Context& context) {
  return simt_forward</*kGeneral=*/false>(call, context);
}

Status attention_simt_backward(const Attention& call, void* workspace, const Context& context) {
  return simt_backward</*kGeneral=*/false>(call, workspace, context);
}

}  // namespace fusedops::cuda
