#include "ops/attention/attention_forward_mma.cuh"

namespace fusedops::cuda {

Status attention_mma_bf16(const Attention& call, const Context& context) { return forward_mma<bf16>(call, context); }

}  // namespace fusedops::cuda
