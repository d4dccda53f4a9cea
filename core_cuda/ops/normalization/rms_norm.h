// rms_norm: y = x * rsqrt(mean(x²) + eps) * (weight + weight_offset), over the last dimension.
// Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
#pragma once

#include "core/common/dropout.h"
#include "core/common/float8.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Signature kRmsNorm{
    .name = "rms_norm",
    .inputs = {{"x", Kind::tensor, Layout::rows}, {.name = "weight", .kind = Kind::optional, .parameter = true}},
    .outputs = {{"y", "x"}, {"rstd", "compute(x)", true}},
    .attributes = {{.name = "eps", .value = "1e-6", .bounds = kNotNegative},
                   {.name = "weight_offset", .value = "0.0", .bounds = kFinite}},
    .axes = {{"...C, C -> ...C, ..."}},
};

const Operator& rms_norm();
FUSEDOPS_CUDA_KERNEL Status rms_norm_cuda(const Call& call);

// s = x + residual or, with a seed, dropout(x) + residual; rounded, and its rms_norm.
inline constexpr Signature kAddRmsNorm{
    .name = "add_rms_norm",
    .inputs = {{"x", Kind::tensor, Layout::rows},
               {"residual", Kind::tensor, Layout::rows},
               {.name = "weight", .kind = Kind::optional, .parameter = true},
               kOptionalSeed},
    .outputs = {{"y", "x"}, {"s", "x"}, {"rstd", "compute(x)", true}},
    .attributes = {{.name = "eps", .value = "1e-6", .bounds = kNotNegative},
                   {.name = "weight_offset", .value = "0.0", .bounds = kFinite},
                   kDropoutAttribute},
    .axes = {{"...C, ...C, C, Z -> ...C, ...C, ...", "!seed"}},
};

const Operator& add_rms_norm();
FUSEDOPS_CUDA_KERNEL Status add_rms_norm_cuda(const Call& call);
Status add_rms_norm_dropout_cuda(const Call& call);  // of a call with a seed

// The same two with a result in 8 bits.
inline constexpr Signature kRmsNormFloat8{
    .name = "rms_norm_float8",
    .inputs = {{"x", Kind::tensor, Layout::rows},
               {.name = "weight", .kind = Kind::optional, .parameter = true},
               kGivenScale},
    .outputs = {kFloat8Result, kScalesResult},
    .attributes = {{.name = "eps", .value = "1e-6", .bounds = kNotNegative},
                   {.name = "weight_offset", .value = "0.0", .bounds = kFinite},
                   kScalingAttribute,
                   kFloat8Attribute},
    .axes = {{"...C, C, ...S -> ...C, ...S", "scaling!=tensor"}, {"...C, C, 1 -> ...C, 1", "scale"}},
};

const Operator& rms_norm_float8();
FUSEDOPS_CUDA_KERNEL Status rms_norm_float8_cuda(const Call& call);

inline constexpr Signature kAddRmsNormFloat8{
    .name = "add_rms_norm_float8",
    .inputs = {{"x", Kind::tensor, Layout::rows},
               {"residual", Kind::tensor, Layout::rows},
               {.name = "weight", .kind = Kind::optional, .parameter = true},
               kGivenScale},
    .outputs = {kFloat8Result, kScalesResult, {"s", "x"}},
    .attributes = {{.name = "eps", .value = "1e-6", .bounds = kNotNegative},
                   {.name = "weight_offset", .value = "0.0", .bounds = kFinite},
                   kScalingAttribute,
                   kFloat8Attribute},
    .axes = {{"...C, ...C, C, ...S -> ...C, ...S, ...C", "scaling!=tensor"},
             {"...C, ...C, C, 1 -> ...C, 1, ...C", "scale"}},
};

const Operator& add_rms_norm_float8();
FUSEDOPS_CUDA_KERNEL Status add_rms_norm_float8_cuda(const Call& call);

// The gradient of both: for add_rms_norm, x is its s, and ds the upstream gradient of s. With a seed, dropped_dx is
// dropout(dx): the gradient of add_rms_norm's x, where dx is that of its residual. A gradient that is not needed, or
// has no input, is returned empty.
inline constexpr Signature kRmsNormBackward{
    .name = "rms_norm_backward",
    .inputs = {{"dy", Kind::tensor, Layout::rows},
               {"x", Kind::tensor, Layout::rows},
               {.name = "weight", .kind = Kind::optional, .parameter = true},
               {"rstd"},
               {"ds", Kind::optional, Layout::rows},
               kOptionalSeed},
    .outputs = {{"dx", "x"}, {"dweight", "weight"}, {"dropped_dx", "x"}},
    .attributes = {{.name = "weight_offset", .value = "0.0", .bounds = kFinite},
                   {"need_dx", Type::boolean, "true"},
                   {"need_dweight", Type::boolean, "true"},
                   kDropoutAttribute,
                   {"need_dropped_dx", Type::boolean, "true"}},
    .axes = {{"...C, ...C, C, ..., ...C, Z -> ...C, C/..., ...C", "!seed"}},
};

const Operator& rms_norm_backward();
FUSEDOPS_CUDA_KERNEL Status rms_norm_backward_cuda(const Call& call);
Status rms_norm_dropout_backward_cuda(const Call& call);  // of a call with a seed

}  // namespace fusedops
