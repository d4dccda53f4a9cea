// softmax: y = softmax(scale * x) over the last dimension. A masked element counts as not there, whatever its value; a
// row of which nothing is left is zeros.
//   backward: dx = scale * y * (dy - sum(dy * y))
#pragma once

#include <algorithm>
#include <cmath>

#include "core/common/exp.h"
#include "core/common/numeric.h"
#include "core/declaration/operator.h"
#include "ops/attention/mask.h"

namespace fusedops {

// (x, mask?; scale, causal) -> y
const Operator& softmax();
FUSEDOPS_CUDA_KERNEL Status softmax_cuda(const Call& call);

// (dy, y; scale) -> dx
const Operator& softmax_backward();
FUSEDOPS_CUDA_KERNEL Status softmax_backward_cuda(const Call& call);

// The call of softmax, its arguments by name. A row is
//   v = sign * x,  y = 2^((v - max(v)) * factor) / the sum of these
// The difference comes first: large x then lose nothing, and cannot overflow.
template <class T>
struct Softmax {
  using A = compute_t<T>;
  enum : int { kX, kMask };
  enum : int { kScale, kCausal };  // of the attributes

  explicit Softmax(const Call& call)
      : x(static_cast<const T*>(call.inputs[kX]->data)), y(static_cast<T*>(call.outputs[0].data)) {
    const View& view = *call.inputs[kX];
    const Rows shape = as_rows(view);
    rows = shape.count, cols = shape.size, x_stride = shape.stride;
    const double scale = call.attributes[kScale].f64;
    sign = scale < 0 ? A(-1) : A(1);
    factor = static_cast<A>(std::fabs(scale) * kLog2E);
    if (factor == 0) sign = 0, factor = 1;  // 0 * x: numbers become equal, infinities NaN
    if (call.attributes[kCausal].i64) height = view.sizes[view.rank - 2];
  }

  // Columns [0, end) of a row are not masked by causality.
  FUSEDOPS_HD int64_t end(int64_t row) const {
    if (height == 0) return cols;
    const int64_t end = row % height + cols - height + 1;
    return end < 0 ? 0 : end;
  }

  int64_t rows, cols;
  const T* x;
  int64_t x_stride;
  T* y;
  A sign, factor;
  int64_t height = 0;  // rows of a causal matrix; 0: not causal
};

// The call of softmax_backward.
template <class T>
struct SoftmaxBackward {
  enum : int { kDy, kY };

  explicit SoftmaxBackward(const Call& call)
      : y(static_cast<const T*>(call.inputs[kY]->data)),
        dx(static_cast<T*>(call.outputs[0].data)),
        scale(static_cast<compute_t<T>>(call.attributes[0].f64)) {
    const Rows dy_rows = as_rows(*call.inputs[kDy]), y_rows = as_rows(*call.inputs[kY]);
    rows = dy_rows.count, cols = dy_rows.size;
    dy = static_cast<const T*>(call.inputs[kDy]->data), dy_stride = dy_rows.stride;
    y_stride = y_rows.stride;
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
