// Products of single rows for attention with few queries on the CPU. Panels would be mostly empty: here keys and values
// are read once, in place. Limit: memory bandwidth.
#pragma once

#include <cstring>

#include "core/cpu/elementwise.h"
#include "ops/attention/attention.h"
#include "ops/products/matmul_cpu.h"

namespace fusedops::cpu {

inline constexpr int kStepKeys = 4;  // their sums are independent chains of multiply-adds

template <class A>
inline constexpr int kVectorWidth = 64 / sizeof(A);  // the order of a dot product: the same on every processor

// Sums of adjacent pairs of a, then of b.
template <class Vector>
[[gnu::always_inline]] inline Vector pair_sums(const Vector& a, const Vector& b) {
  constexpr int kWidth = sizeof(Vector) / sizeof(a[0]);
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    return shuffled<2 * i...>(a, b) + shuffled<2 * i + 1 ...>(a, b);
  }(std::make_integer_sequence<int, kWidth>());
}

// to[i] = the sum of row * keys[i] over `size` elements, for kStepKeys keys. The row has zeros up to a whole vector.
template <class A>
[[gnu::always_inline]] inline void dot_products(const A* row, const A* const* keys, int size, A* to) {
  constexpr int kWidth = kVectorWidth<A>;
  typedef A Vector __attribute__((vector_size(64)));
  Vector sums[kStepKeys] = {};
  const auto add = [&](int d, size_t bytes) {
    Vector x;
    std::memcpy(&x, row + d, sizeof x);
#pragma GCC unroll 4
    for (int i = 0; i < kStepKeys; ++i) {
      Vector y{};
      std::memcpy(&y, keys[i] + d, bytes);
      sums[i] += x * y;
    }
  };
  int d = 0;
  for (; d + kWidth <= size; d += kWidth) add(d, sizeof(Vector));
  if (d < size) add(d, (size - d) * sizeof(A));
  Vector sum = pair_sums(pair_sums(sums[0], sums[1]), pair_sums(sums[2], sums[3]));
#pragma GCC unroll 2
  for (int width = kWidth / 4; width > 1; width /= 2) sum = pair_sums(sum, sum);
  std::memcpy(to, &sum, kStepKeys * sizeof(A));
}

// to += p[0] * rows[0] + ... in order, for `size` elements.
template <class A>
[[gnu::always_inline]] inline void add_products(const A* p, const A* const* rows, int size, A* to) {
#pragma GCC ivdep
  for (int d = 0; d < size; ++d)
    to[d] = ((((to[d] + p[0] * rows[0][d]) + p[1] * rows[1][d]) + p[2] * rows[2][d]) + p[3] * rows[3][d]);
}

// kStepKeys rows in the compute type. Rows from `count` on are zeros.
template <class T>
class WideRows {
 public:
  using A = compute_t<T>;

  template <class At>
  [[gnu::always_inline]] const A* const* read(At at, int count, int size) {
    for (int i = 0; i < kStepKeys; ++i)
      rows_[i] = i < count ? widened(at(i), buffers_[i], size) : std::fill_n(buffers_[i], size, A(0)) - size;
    return rows_;
  }

 private:
  const A* rows_[kStepKeys];
  A buffers_[kStepKeys][kMaxFeatures];
};

}  // namespace fusedops::cpu
