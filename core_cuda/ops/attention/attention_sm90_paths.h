// The kernels for compute capability 9.x.
#pragma once

#include "core/common/exp.h"
#include "ops/attention/attention.h"

namespace fusedops::cuda::sm90 {

// Whether a product is a score: without a soft cap, mask, or negative scale. The scale is part of the factor then.
inline bool is_plain(const Attention& call) {
  return call.softcap == 0 && !call.has_mask && static_cast<float>(call.scale * kLog2E) > 0;
}

// All others have kernels of their own, which take long to compile: of bfloat16 alone, which models are trained in.
inline constexpr bool has_kernel(DType dtype, bool plain) { return plain || dtype == DType::bf16; }

}  // namespace fusedops::cuda::sm90
