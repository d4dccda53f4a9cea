#include "ops/attention/attention_sm80_forward.cuh"

namespace fusedops::cuda {

Status attention_sm80_bf16(const Attention& call, const Context& context) { return sm80_forward<bf16>(call, context); }

}  // namespace fusedops::cuda
