#include "ops/attention/attention_sm90_backward.cuh"
#include "ops/attention/attention_sm90_paths.h"

namespace fusedops::cuda::sm90 {

Status backward_f16(const Attention& call, void* workspace, const Context& context) {
  return backward<cutlass::half_t>(call, workspace, context);
}

}  // namespace fusedops::cuda::sm90
