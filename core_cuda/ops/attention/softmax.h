// softmax: y = softmax(scale * x + bias) over the last dimension. Masked elements, and those whose bias is minus
// infinity, are ignored, whatever their values; a fully masked row is zeros.
//   backward: dx = scale * y * (dy - sum(dy * y)); the gradient of a bias is the sum of y * (dy - sum(dy * y)) over the
//     elements that share a number
#pragma once

#include <algorithm>
#include <cmath>

#include "core/common/exp.h"
#include "core/common/numeric.h"
#include "core/declaration/operator.h"
#include "ops/attention/mask.h"

namespace fusedops {

inline constexpr Signature kSoftmax{
    .name = "softmax",
    .inputs = {{"x", Kind::tensor, Layout::rows},
               {"mask", Kind::optional, Layout::contiguous, /*parameter=*/true},
               optional_parameter("bias")},
    .outputs = {{"y", "x"}},
    .attributes = {{.name = "scale", .value = "1.0", .bounds = kFinite}, {"causal", Type::boolean, "false"}},
    .axes = {{"...C, ~...C, ~...C -> ...C", "causal=false"}, {"...TC, ~...TC, ~...TC -> ...TC"}},
};

Operator softmax();
FUSEDOPS_CUDA_KERNEL Status softmax_cuda(const Call& call);

inline constexpr Signature kSoftmaxBackward{
    .name = "softmax_backward",
    .inputs = {{"dy", Kind::tensor, Layout::rows}, {"y", Kind::tensor, Layout::rows}},
    .outputs = {{"dx", "y"}},
    .attributes = {{.name = "scale", .value = "1.0", .bounds = kFinite}},
    .axes = {{"...C, ...C -> ...C"}},
};

Operator softmax_backward();
FUSEDOPS_CUDA_KERNEL Status softmax_backward_cuda(const Call& call);

inline constexpr Signature kSoftmaxBiasBackward{
    .name = "softmax_bias_backward",
    .inputs = {{"dy", Kind::tensor, Layout::rows},
               {"y", Kind::tensor, Layout::rows},
               {"bias", Kind::tensor, Layout::contiguous, /*parameter=*/true}},
    .outputs = {{"dbias", "bias"}},
    .axes = {{"...C, ...C, ~...C -> ~...C"}},
};

Operator softmax_bias_backward();
FUSEDOPS_CUDA_KERNEL Status softmax_bias_backward_cuda(const Call& call);

// Arguments of softmax. A row is
//   v = multiplier * x + bias,  y = 2^((v - max(v)) * factor) / the sum of these
// The maximum is subtracted first, so that large x lose no accuracy and cannot overflow.
template <class T>
struct Softmax {
  using A = compute_t<T>;

  explicit Softmax(const Call& call)
      : x(call.input<T>(input_of(kSoftmax, "x"))), y(call.output<T>(output_of(kSoftmax, "y"))) {
    const View& view = *call.inputs[input_of(kSoftmax, "x")];
    const Rows shape = as_rows(view);
    rows = shape.count, cols = shape.size, x_stride = shape.stride;
    const double scale = call.attributes[attribute_of<double>(kSoftmax, "scale")];
    if (call.inputs[input_of(kSoftmax, "bias")]) {
      multiplier = static_cast<A>(scale), factor = A(kLog2E);
    } else {
      multiplier = scale < 0 ? A(-1) : A(1);
      factor = static_cast<A>(std::fabs(scale) * kLog2E);
      if (factor == 0) multiplier = 0, factor = 1;  // 0 * x: finite values become equal, infinities NaN
    }
    if (call.attributes[attribute_of<bool>(kSoftmax, "causal")]) height = view.sizes[view.rank - 2];
  }

  // Columns [0, end) of a row are visible under causality.
  FUSEDOPS_HD int64_t end(int64_t row) const {
    if (height == 0) return cols;
    const int64_t end = row % height + cols - height + 1;
    return end < 0 ? 0 : end;
  }

  int64_t rows, cols;
  const T* x;
  int64_t x_stride;
  T* y;
  A multiplier, factor;
  int64_t height = 0;  // rows of a causal matrix; 0: not causal
};

// The bias of a call of softmax.
inline BroadcastBias softmax_bias(const Call& call) {
  const View* bias = call.inputs[input_of(kSoftmax, "bias")];
  return bias ? BroadcastBias(*bias, *call.inputs[input_of(kSoftmax, "x")]) : BroadcastBias();
}

// Arguments of softmax_bias_backward. A row of the bias is shared by several rows of y.
template <class T>
struct SoftmaxBiasBackward {
  explicit SoftmaxBiasBackward(const Call& call)
      : dy(call.input<T>(input_of(kSoftmaxBiasBackward, "dy"))),
        y(call.input<T>(input_of(kSoftmaxBiasBackward, "y"))),
        dbias(call.outputs[output_of(kSoftmaxBiasBackward, "dbias")].data) {
    const View& of_y = *call.inputs[input_of(kSoftmaxBiasBackward, "y")];
    const Rows dy_rows = as_rows(*call.inputs[input_of(kSoftmaxBiasBackward, "dy")]);
    rows = dy_rows.count, cols = dy_rows.size, dy_stride = dy_rows.stride;
    y_stride = as_rows(of_y).stride;
    bias = BroadcastBias(*call.inputs[input_of(kSoftmaxBiasBackward, "bias")], of_y);
    bias_cols = bias.has_columns() ? cols : 1;
    bias_rows = bias_cols ? bias.elements() / bias_cols : 0;
    sharing_rows = bias.sharing_rows();
  }

  FUSEDOPS_HD compute_t<T> term(int64_t row, int64_t column, compute_t<T> dot) const {
    return to_compute(y[row * y_stride + column]) * (to_compute(dy[row * dy_stride + column]) - dot);
  }

  int64_t rows, cols;
  const T* dy;
  int64_t dy_stride;
  const T* y;
  int64_t y_stride;
  BroadcastBias bias;
  int64_t bias_rows, bias_cols, sharing_rows;
  void* dbias;
};

// Arguments of softmax_backward.
template <class T>
struct SoftmaxBackward {
  explicit SoftmaxBackward(const Call& call)
      : dy(call.input<T>(input_of(kSoftmaxBackward, "dy"))),
        y(call.input<T>(input_of(kSoftmaxBackward, "y"))),
        dx(call.output<T>(output_of(kSoftmaxBackward, "dx"))),
        scale(static_cast<compute_t<T>>(call.attributes[attribute_of<double>(kSoftmaxBackward, "scale")])) {
    const Rows dy_rows = as_rows(*call.inputs[input_of(kSoftmaxBackward, "dy")]);
    rows = dy_rows.count, cols = dy_rows.size, dy_stride = dy_rows.stride;
    y_stride = as_rows(*call.inputs[input_of(kSoftmaxBackward, "y")]).stride;
  }

  int64_t rows, cols;
  const T* dy;
  int64_t dy_stride;
  const T* y;
  int64_t y_stride;
  T* dx;
  compute_t<T> scale;
};

}  // namespace fusedops
