// The kernels for compute capability 9.x by dtype, each in a file of its own, since they compile slowly.
#pragma once

#include "ops/attention/attention.h"

namespace fusedops::cuda::sm90 {

Status forward_f16(const Attention& call, const Context& context);
Status forward_bf16(const Attention& call, const Context& context);
Status backward_f16(const Attention& call, void* workspace, const Context& context);
Status backward_bf16(const Attention& call, void* workspace, const Context& context);

}  // namespace fusedops::cuda::sm90
