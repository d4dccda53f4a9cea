#include "ops/attention/attention_sm80_forward.cuh"

namespace fusedops::cuda {

Status attention_sm80_f16(const Attention& call, const Context& context) { return sm80_forward<f16>(call, context); }

}  // namespace fusedops::cuda
