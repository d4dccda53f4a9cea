// rms_norm: y = x * rsqrt(mean(x²) + eps) * (weight + weight_offset), over the last dimension.
// Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
#pragma once

#include "core/declaration/operator.h"

namespace fusedops {

// (x, weight?; eps, weight_offset) -> (y, rstd)
const Operator& rms_norm();
FUSEDOPS_CUDA_KERNEL Status rms_norm_cuda(const Call& call);

// (x, residual, weight?; eps, weight_offset) -> (y, s, rstd): s = x + residual, rounded, and its rms_norm.
const Operator& add_rms_norm();
FUSEDOPS_CUDA_KERNEL Status add_rms_norm_cuda(const Call& call);

// (dy, x, weight?, rstd, ds?; weight_offset, need_dx, need_dweight) -> (dx, dweight), of either: x is add_rms_norm's s,
// and ds what flows back to it. What is not needed, or has no input, is returned empty.
const Operator& rms_norm_backward();
FUSEDOPS_CUDA_KERNEL Status rms_norm_backward_cuda(const Call& call);

}  // namespace fusedops
