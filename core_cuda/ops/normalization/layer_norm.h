// layer_norm: y = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias, over the last dimension; the variance is biased.
// Ba, Kiros and Hinton, "Layer Normalization", 2016.
#pragma once

#include "core/declaration/operator.h"

namespace fusedops {

// (x, weight?, bias?; eps) -> (y, mean, rstd)
const Operator& layer_norm();
FUSEDOPS_CUDA_KERNEL Status layer_norm_cuda(const Call& call);

// (x, residual, weight?, bias?; eps) -> (y, s, mean, rstd): s = x + residual, rounded, and its layer_norm.
const Operator& add_layer_norm();
FUSEDOPS_CUDA_KERNEL Status add_layer_norm_cuda(const Call& call);

// (dy, x, weight?, bias?, mean, rstd, ds?; need_dx, need_dweight, need_dbias) -> (dx, dweight, dbias), of either: x is
// add_layer_norm's s, and ds what flows back to it. What is not needed, or has no input, is returned empty.
const Operator& layer_norm_backward();
FUSEDOPS_CUDA_KERNEL Status layer_norm_backward_cuda(const Call& call);

}  // namespace fusedops
