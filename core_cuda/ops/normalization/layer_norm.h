// layer_norm: y = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias, over the last dimension; the variance is biased.
// Ba, Kiros and Hinton, "Layer Normalization", 2016.
#pragma once

#include "core/common/dropout.h"
#include "core/common/float8.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Signature kLayerNorm{
    .name = "layer_norm",
    .inputs = {{"x", Kind::tensor, Layout::rows},
               {.name = "weight", .kind = Kind::optional, .parameter = true},
               {.name = "bias", .kind = Kind::optional, .parameter = true}},
    .outputs = {{"y", "x"}, {"mean", "compute(x)", true}, {"rstd", "compute(x)", true}},
    .attributes = {{.name = "eps", .value = "1e-5", .bounds = kNotNegative}},
    .axes = {{"...C, C, C -> ...C, ..., ..."}},
};

const Operator& layer_norm();
FUSEDOPS_CUDA_KERNEL Status layer_norm_cuda(const Call& call);

// The same with a result in 8 bits.
inline constexpr Signature kLayerNormFloat8{
    .name = "layer_norm_float8",
    .inputs = {{"x", Kind::tensor, Layout::rows},
               {.name = "weight", .kind = Kind::optional, .parameter = true},
               {.name = "bias", .kind = Kind::optional, .parameter = true},
               kGivenScale},
    .outputs = {kFloat8Result, kScalesResult},
    .attributes = {{.name = "eps", .value = "1e-5", .bounds = kNotNegative}, kScalingAttribute, kFloat8Attribute},
    .axes = {{"...C, C, C, ...S -> ...C, ...S", "scaling!=tensor"}, {"...C, C, C, 1 -> ...C, 1", "scale"}},
};

const Operator& layer_norm_float8();
FUSEDOPS_CUDA_KERNEL Status layer_norm_float8_cuda(const Call& call);

// s = x + residual or, with a seed, dropout(x) + residual; rounded, and its layer_norm.
inline constexpr Signature kAddLayerNorm{
    .name = "add_layer_norm",
    .inputs = {{"x", Kind::tensor, Layout::rows},
               {"residual", Kind::tensor, Layout::rows},
               {.name = "weight", .kind = Kind::optional, .parameter = true},
               {.name = "bias", .kind = Kind::optional, .parameter = true},
               kOptionalSeed},
    .outputs = {{"y", "x"}, {"s", "x"}, {"mean", "compute(x)", true}, {"rstd", "compute(x)", true}},
    .attributes = {{.name = "eps", .value = "1e-5", .bounds = kNotNegative}, kDropoutAttribute},
    .axes = {{"...C, ...C, C, C, Z -> ...C, ...C, ..., ...", "!seed"}},
};

const Operator& add_layer_norm();
FUSEDOPS_CUDA_KERNEL Status add_layer_norm_cuda(const Call& call);
Status add_layer_norm_dropout_cuda(const Call& call);  // of a call with a seed

// The gradient of both: for add_layer_norm, x is its s, and ds the upstream gradient of s. With a seed, dropped_dx is
// dropout(dx): the gradient of add_layer_norm's x, where dx is that of its residual. A gradient that is not needed, or
// has no input, is returned empty.
inline constexpr Signature kLayerNormBackward{
    .name = "layer_norm_backward",
    .inputs = {{"dy", Kind::tensor, Layout::rows},
               {"x", Kind::tensor, Layout::rows},
               {.name = "weight", .kind = Kind::optional, .parameter = true},
               {.name = "bias", .kind = Kind::optional, .parameter = true},
               {"mean"},
               {"rstd"},
               {"ds", Kind::optional, Layout::rows},
               kOptionalSeed},
    .outputs = {{"dx", "x"}, {"dweight", "weight"}, {"dbias", "bias"}, {"dropped_dx", "x"}},
    .attributes = {{"need_dx", Type::boolean, "true"},
                   {"need_dweight", Type::boolean, "true"},
                   {"need_dbias", Type::boolean, "true"},
                   kDropoutAttribute,
                   {"need_dropped_dx", Type::boolean, "true"}},
    .axes = {{"...C, ...C, C, C, ..., ..., ...C, Z -> ...C, C/..., C/..., ...C", "!seed"}},
};

const Operator& layer_norm_backward();
FUSEDOPS_CUDA_KERNEL Status layer_norm_backward_cuda(const Call& call);
Status layer_norm_dropout_backward_cuda(const Call& call);  // of a call with a seed

}  // namespace fusedops
