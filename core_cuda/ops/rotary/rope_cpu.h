// Rotation of rows on the CPU, shared by the operators with a rotary embedding.
#pragma once

#include <algorithm>

#include "core/cpu/elementwise.h"
#include "ops/rotary/rope.h"

namespace fusedops::cpu {

// The first element of a row.
inline int64_t offset_of(const Heads& rows, int64_t row) {
  const int64_t k = row % rows.sizes[2], j = row / rows.sizes[2] % rows.sizes[1];
  return row / rows.sizes[2] / rows.sizes[1] * rows.strides[0] + j * rows.strides[1] + k * rows.strides[2];
}

// Products and sums round separately: a fused multiply-add would skip an overflow of one of the two products.
#if defined(__clang__)
#pragma clang fp contract(off)
#define FUSEDOPS_UNFUSED
#else
#define FUSEDOPS_UNFUSED __attribute__((noinline, optimize("fp-contract=off")))
#endif

template <class A>
FUSEDOPS_UNFUSED void rotate(int64_t n, const A* x1, const A* x2, const A* cos, const A* sin, A sign, A* y1, A* y2) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const A s = sign * sin[i], a = x1[i], b = x2[i];
    y1[i] = a * cos[i] - b * s;
    y2[i] = b * cos[i] + a * s;
  }
}

// Rotates consecutive rows, at most kBlock pairs at a time. Rows are in T or, as results and sources of further
// computation, in the compute type.
template <class T, class Angle>
class Rotator {
 public:
  using A = compute_t<T>;

  explicit Rotator(const Rope<T, Angle>& call) : call_(call) {}

  // Rotates x by the angles of a row.
  template <class X, class Y>
  void row(int64_t row, const X* x, Y* y) {
    const Heads& rows = call_.rows;
    const int64_t k = row % rows.sizes[2], j = row / rows.sizes[2] % rows.sizes[1];
    const int64_t angles = call_.angle_row(row / rows.sizes[2] / rows.sizes[1] / call_.per_batch, j, k);
    for (int64_t start = 0; start < call_.half; start += kBlock) {
      const int64_t n = std::min(kBlock, call_.half - start);
      if (angles != angles_ || call_.half > kBlock) {
        cos_ = widened(call_.cos + angles * call_.half + start, cos_buffer_, n);
        sin_ = widened(call_.sin + angles * call_.half + start, sin_buffer_, n);
      }
      call_.interleaved ? neighbours(n, x + 2 * start, y + 2 * start) : halves(n, x + start, y + start);
    }
    angles_ = angles;  // shared by the heads of one position
    const int64_t rotated = 2 * call_.half, rest = rows.size - rotated;
    if constexpr (std::is_same_v<X, Y>)
      std::copy_n(x + rotated, rest, y + rotated);
    else if constexpr (std::is_same_v<Y, A>)
      widen(x + rotated, y + rotated, rest);
    else
      narrow(x + rotated, y + rotated, rest);
  }

 private:
  template <class X, class Y>
  void halves(int64_t n, const X* x, Y* y) {
    const A *x1 = widened(x, x1_, n), *x2 = widened(x + call_.half, x2_, n);
    if constexpr (std::is_same_v<Y, A>) {
      rotate(n, x1, x2, cos_, sin_, sign_, y, y + call_.half);
    } else {
      rotate(n, x1, x2, cos_, sin_, sign_, y1_, y2_);
      narrow(y1_, y, n);
      narrow(y2_, y + call_.half, n);
    }
  }

  template <class X, class Y>
  void neighbours(int64_t n, const X* x, Y* y) {
    for (int64_t i = 0; i < n; ++i) {
      x1_[i] = to_compute(x[2 * i]);
      x2_[i] = to_compute(x[2 * i + 1]);
    }
    rotate(n, x1_, x2_, cos_, sin_, sign_, y1_, y2_);
    for (int64_t i = 0; i < n; ++i) {
      y[2 * i] = from_compute<Y>(y1_[i]);
      y[2 * i + 1] = from_compute<Y>(y2_[i]);
    }
  }

  const Rope<T, Angle>& call_;
  const A sign_ = call_.inverse ? -1 : 1;
  int64_t angles_ = -1;
  const A *cos_ = nullptr, *sin_ = nullptr;
  A cos_buffer_[kBlock], sin_buffer_[kBlock];
  A x1_[kBlock], x2_[kBlock], y1_[kBlock], y2_[kBlock];
};

}  // namespace fusedops::cpu
