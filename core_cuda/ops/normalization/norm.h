// RMSNorm and LayerNorm, over the last dimension: signatures and calls.
//
//   forward    y = (x - mean) * rstd * (weight + weight_offset) + bias     RMSNorm: mean 0, no bias
//              rstd = rsqrt(mean((x - mean)²) + eps)     LayerNorm: weight_offset 0
//   backward   dx = rstd * (wdy - mean(wdy) - xhat * mean(wdy * xhat)) + ds     RMSNorm: without mean(wdy)
//              dweight = sum over rows of dy * xhat,  dbias = sum over rows of dy
//
// where xhat = (x - mean) * rstd and wdy = dy * (weight + weight_offset). With a residual, x is replaced by s = x +
// residual, rounded; with a seed, by s = dropout(x) + residual. dx is then the gradient of the residual, and
// dropped_dx = dropout(dx) that of x.
//
// Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019; Ba, Kiros and Hinton, "Layer Normalization", 2016.
#pragma once

#include "core/common/dropout.h"
#include "core/common/float8.h"
#include "core/common/numeric.h"
#include "core/common/rows.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Output kSavedMean{"mean", "compute(x)", /*saved=*/true},
    kSavedRstd{"rstd", "compute(x)", /*saved=*/true};
inline constexpr Attribute kRmsEps{.name = "eps", .value = "1e-6", .bounds = kNotNegative},
    kLayerEps{.name = "eps", .value = "1e-5", .bounds = kNotNegative},
    kWeightOffset{.name = "weight_offset", .value = "0.0", .bounds = kFinite};

inline constexpr Signature kRmsNorm{
    .name = "rms_norm",
    .inputs = {in_rows("x"), optional_parameter("weight")},
    .outputs = {{"y", "x"}, kSavedRstd},
    .attributes = {kRmsEps, kWeightOffset},
    .axes = {{"...C, C -> ...C, ..."}},
};

inline constexpr Signature kAddRmsNorm{
    .name = "add_rms_norm",
    .inputs = {in_rows("x"), in_rows("residual"), optional_parameter("weight"), kOptionalSeed},
    .outputs = {{"y", "x"}, {"s", "x"}, kSavedRstd},
    .attributes = {kRmsEps, kWeightOffset, kDropoutAttribute},
    .axes = {{"...C, ...C, C, Z -> ...C, ...C, ...; seed@...C"}},
};

inline constexpr Signature kRmsNormFloat8{
    .name = "rms_norm_float8",
    .inputs = {in_rows("x"), optional_parameter("weight"), kGivenScale},
    .outputs = {kFloat8Result, kScalesResult},
    .attributes = {kRmsEps, kWeightOffset, kScalingAttribute, kFloat8Attribute},
    .axes = {{"...C, C, ...S -> ...C, ...S", "scaling!=tensor"}, {"...C, C, 1 -> ...C, 1", "scale"}},
};

inline constexpr Signature kAddRmsNormFloat8{
    .name = "add_rms_norm_float8",
    .inputs = {in_rows("x"), in_rows("residual"), optional_parameter("weight"), kGivenScale},
    .outputs = {kFloat8Result, kScalesResult, {"s", "x"}},
    .attributes = {kRmsEps, kWeightOffset, kScalingAttribute, kFloat8Attribute},
    .axes = {{"...C, ...C, C, ...S -> ...C, ...S, ...C", "scaling!=tensor"},
             {"...C, ...C, C, 1 -> ...C, 1, ...C", "scale"}},
};

inline constexpr Signature kLayerNorm{
    .name = "layer_norm",
    .inputs = {in_rows("x"), optional_parameter("weight"), optional_parameter("bias")},
    .outputs = {{"y", "x"}, kSavedMean, kSavedRstd},
    .attributes = {kLayerEps},
    .axes = {{"...C, C, C -> ...C, ..., ..."}},
};

inline constexpr Signature kAddLayerNorm{
    .name = "add_layer_norm",
    .inputs = {in_rows("x"), in_rows("residual"), optional_parameter("weight"), optional_parameter("bias"),
               kOptionalSeed},
    .outputs = {{"y", "x"}, {"s", "x"}, kSavedMean, kSavedRstd},
    .attributes = {kLayerEps, kDropoutAttribute},
    .axes = {{"...C, ...C, C, C, Z -> ...C, ...C, ..., ...; seed@...C"}},
};

inline constexpr Signature kLayerNormFloat8{
    .name = "layer_norm_float8",
    .inputs = {in_rows("x"), optional_parameter("weight"), optional_parameter("bias"), kGivenScale},
    .outputs = {kFloat8Result, kScalesResult},
    .attributes = {kLayerEps, kScalingAttribute, kFloat8Attribute},
    .axes = {{"...C, C, C, ...S -> ...C, ...S", "scaling!=tensor"}, {"...C, C, C, 1 -> ...C, 1", "scale"}},
};

// The gradients, with and without a residual: x is the s of the forward, and ds the upstream gradient of s. A gradient
// that is not needed, or has no input, is returned empty.
inline constexpr Input kMeanOfX{"mean"}, kRstdOfX{"rstd"}, kOptionalDs{"ds", Kind::optional, Layout::rows};

inline constexpr Signature kRmsNormBackward{
    .name = "rms_norm_backward",
    .inputs = {in_rows("dy"), in_rows("x"), optional_parameter("weight"), kRstdOfX, kOptionalDs, kOptionalSeed},
    .outputs = {{"dx", "x"}, {"dweight", "weight"}, {"dropped_dx", "x"}},
    .attributes = {kWeightOffset,
                   {"need_dx", Type::boolean, "true"},
                   {"need_dweight", Type::boolean, "true"},
                   kDropoutAttribute,
                   {"need_dropped_dx", Type::boolean, "true"}},
    .axes = {{"...C, ...C, C, ..., ...C, Z -> ...C, C/..., ...C; seed@...C"}},
};

inline constexpr Signature kLayerNormBackward{
    .name = "layer_norm_backward",
    .inputs = {in_rows("dy"), in_rows("x"), optional_parameter("weight"), optional_parameter("bias"), kMeanOfX,
               kRstdOfX, kOptionalDs, kOptionalSeed},
    .outputs = {{"dx", "x"}, {"dweight", "weight"}, {"dbias", "bias"}, {"dropped_dx", "x"}},
    .attributes = {{"need_dx", Type::boolean, "true"},
                   {"need_dweight", Type::boolean, "true"},
                   {"need_dbias", Type::boolean, "true"},
                   kDropoutAttribute,
                   {"need_dropped_dx", Type::boolean, "true"}},
    .axes = {{"...C, ...C, C, C, ..., ..., ...C, Z -> ...C, C/..., C/..., ...C; seed@...C"}},
};

Operator rms_norm();
Operator add_rms_norm();
Operator rms_norm_float8();
Operator add_rms_norm_float8();
Operator rms_norm_backward();
Operator layer_norm();
Operator add_layer_norm();
Operator layer_norm_float8();
Operator layer_norm_backward();

FUSEDOPS_CUDA_KERNEL Status rms_norm_cuda(const Call& call);
FUSEDOPS_CUDA_KERNEL Status add_rms_norm_cuda(const Call& call);
FUSEDOPS_CUDA_KERNEL Status rms_norm_float8_cuda(const Call& call);
FUSEDOPS_CUDA_KERNEL Status add_rms_norm_float8_cuda(const Call& call);
FUSEDOPS_CUDA_KERNEL Status rms_norm_backward_cuda(const Call& call);
FUSEDOPS_CUDA_KERNEL Status layer_norm_cuda(const Call& call);
FUSEDOPS_CUDA_KERNEL Status add_layer_norm_cuda(const Call& call);
FUSEDOPS_CUDA_KERNEL Status layer_norm_float8_cuda(const Call& call);
FUSEDOPS_CUDA_KERNEL Status layer_norm_backward_cuda(const Call& call);

// Kernels for calls with a seed.
Status add_rms_norm_dropout_cuda(const Call& call);
Status rms_norm_dropout_backward_cuda(const Call& call);
Status add_layer_norm_dropout_cuda(const Call& call);
Status layer_norm_dropout_backward_cuda(const Call& call);

// True for LayerNorm.
template <const Signature& kOp>
inline constexpr bool kIsCentered = find_input(kOp, "bias") != kAbsent;

// The row stride of an input; 0 if it is absent.
inline int64_t row_stride(const Call& call, int input) {
  const View* view = call.find(input);
  return view ? as_rows(*view).stride : 0;
}

template <class T>
struct NormForward {
  int64_t rows, cols;
  const T* x;
  int64_t x_stride;
  const T* residual;  // null: none, and s is x itself
  int64_t residual_stride;
  DropoutAdd added;        // computes s from x and the residual; without a seed s is their sum
  Parameter weight, bias;  // absent: as if weight + offset were 1 and bias 0
  double offset;
  double eps;
  T* y;                // unused for 8-bit results: see Float8Result
  T* s;                // rounded; what is normalized
  compute_t<T>* mean;  // null: RMSNorm, or the statistics are not needed
  compute_t<T>* rstd;
};

template <const Signature& kOp, class T>
NormForward<T> norm_forward_of(const Call& call) {
  constexpr int kX = input_of(kOp, "x"), kResidual = find_input(kOp, "residual"), kSeed = find_input(kOp, "seed");
  constexpr int kWeight = input_of(kOp, "weight"), kBias = find_input(kOp, "bias");
  constexpr int kY = output_of(kOp, "y"), kS = find_output(kOp, "s");
  constexpr int kMean = find_output(kOp, "mean"), kRstd = find_output(kOp, "rstd");
  constexpr auto kEps = attribute_of<double>(kOp, "eps"), kOffset = find_attribute<double>(kOp, "weight_offset"),
                 kDropout = find_attribute<double>(kOp, "dropout");
  constexpr Float8Places kFloat8 = float8_places(kOp);
  has_only(kOp, {kX, kResidual, kSeed, kWeight, kBias, kFloat8.scale}, {kY, kS, kMean, kRstd, kFloat8.scales},
           {kEps.index, kOffset.index, kDropout.index, kFloat8.scaling.index, kFloat8.dtype.index});
  const Rows x_rows = as_rows(*call.inputs[kX]);
  return {.rows = x_rows.count,
          .cols = x_rows.size,
          .x = call.input<T>(kX),
          .x_stride = x_rows.stride,
          .residual = call.input<T>(kResidual),
          .residual_stride = row_stride(call, kResidual),
          .added = {Dropout(call, kSeed, call.attributes.or_zero(kDropout))},
          .weight = parameter(call, kWeight),
          .bias = parameter(call, kBias),
          .offset = call.attributes.or_zero(kOffset),
          .eps = call.attributes[kEps],
          .y = call.output<T>(kY),
          .s = call.output<T>(kS),
          .mean = call.output<compute_t<T>>(kMean),
          .rstd = call.output<compute_t<T>>(kRstd)};
}

template <class T>
struct NormBackward {
  int64_t rows, cols;
  const T* dy;
  int64_t dy_stride;
  const T* x;
  int64_t x_stride;
  const T* ds;  // null: none
  int64_t ds_stride;
  Parameter weight;  // absent: as if weight + offset were 1
  double offset;
  const compute_t<T>* mean;  // null: RMSNorm
  const compute_t<T>* rstd;
  Dropout dropout;
  T *dx, *dropped_dx;  // null: not needed
  bool need_dweight, need_dbias;
  View dweight, dbias;
  RowChunks chunks;        // of the CPU, and the bound of the workspace; NormBackwardPlan has those of a GPU
  compute_t<T>* partials;  // [chunks][cols] for dweight if it is needed, then the same for dbias
  // Behind the partial sums, in the same memory: sums [rows][2] on a GPU, for kernels that read a row more than once,
  // and weight + offset in the compute type on a CPU.
  compute_t<T>*row_sums, *weight_copy;
};

template <const Signature& kOp, class T>
NormBackward<T> norm_backward_of(const Call& call) {
  constexpr int kDy = input_of(kOp, "dy"), kX = input_of(kOp, "x"), kDs = input_of(kOp, "ds");
  constexpr int kWeight = input_of(kOp, "weight"), kBias = find_input(kOp, "bias"), kSeed = input_of(kOp, "seed");
  constexpr int kMean = find_input(kOp, "mean"), kRstd = input_of(kOp, "rstd");
  constexpr int kDx = output_of(kOp, "dx"), kDroppedDx = output_of(kOp, "dropped_dx");
  constexpr int kDweight = output_of(kOp, "dweight"), kDbias = find_output(kOp, "dbias");
  constexpr auto kOffset = find_attribute<double>(kOp, "weight_offset"), kRate = attribute_of<double>(kOp, "dropout");
  constexpr auto kNeedDx = attribute_of<bool>(kOp, "need_dx"),
                 kNeedDroppedDx = attribute_of<bool>(kOp, "need_dropped_dx"),
                 kNeedDweight = attribute_of<bool>(kOp, "need_dweight"),
                 kNeedDbias = find_attribute<bool>(kOp, "need_dbias");
  has_only(kOp, {kDy, kX, kDs, kWeight, kBias, kSeed, kMean, kRstd}, {kDx, kDroppedDx, kDweight, kDbias},
           {kOffset.index, kRate.index, kNeedDx.index, kNeedDroppedDx.index, kNeedDweight.index, kNeedDbias.index});
  const Attributes& attributes = call.attributes;
  const Rows x_rows = as_rows(*call.inputs[kX]);
  const Parameter weight = parameter(call, kWeight);
  const Dropout dropout(call, kSeed, attributes[kRate]);
  NormBackward<T> norm{.rows = x_rows.count,
                       .cols = x_rows.size,
                       .dy = call.input<T>(kDy),
                       .dy_stride = row_stride(call, kDy),
                       .x = call.input<T>(kX),
                       .x_stride = x_rows.stride,
                       .ds = call.input<T>(kDs),
                       .ds_stride = row_stride(call, kDs),
                       .weight = weight,
                       .offset = attributes.or_zero(kOffset),
                       .mean = call.input<compute_t<T>>(kMean),
                       .rstd = call.input<compute_t<T>>(kRstd),
                       .dropout = dropout,
                       .dx = attributes[kNeedDx] ? call.output<T>(kDx) : nullptr,
                       .dropped_dx = dropout.seed && attributes[kNeedDroppedDx] ? call.output<T>(kDroppedDx) : nullptr,
                       .need_dweight = weight.data && attributes[kNeedDweight],
                       .need_dbias = call.find(kBias) && attributes.or_zero(kNeedDbias),
                       .dweight = call.outputs[kDweight],
                       .dbias = kDbias == kAbsent ? View() : call.outputs[kDbias],
                       .chunks = row_chunks_of(x_rows.count),
                       .partials = static_cast<compute_t<T>*>(call.workspace),
                       .row_sums = nullptr,
                       .weight_copy = nullptr};
  norm.row_sums = norm.weight_copy =
      norm.partials + (norm.need_dweight + norm.need_dbias) * norm.chunks.count * norm.cols;
  return norm;
}

}  // namespace fusedops
