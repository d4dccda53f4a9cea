// Products of single rows for attention with few queries on the CPU. Panels would be mostly empty: here keys and values
// are read once, in place. Limit: memory bandwidth.
#pragma once

#include <cstring>

#include "core/cpu/elementwise.h"
#include "ops/attention/attention.h"
#include "ops/products/matmul_cpu.h"

namespace fusedops::cpu {

inline constexpr int kStepKeys = 4;   // their sums are independent chains of multiply-adds
inline constexpr int kWideKeys = 16;  // their rows stay in the first-level cache for all queries

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

// Consecutive keys or values of one head in the compute type.
template <class A>
struct WideRows {
  const A* first;
  int64_t pitch;
};

// to[i] = the sum of row * keys[i] over `size` elements, for kStepKeys keys. The row has zeros up to a whole vector.
template <class A>
[[gnu::always_inline]] inline void dot_products(const A* row, const WideRows<A>& keys, int size, A* to) {
  constexpr int kWidth = kVectorWidth<A>;
  typedef A Vector __attribute__((vector_size(64)));
  Vector sums[kStepKeys] = {};
  const auto add = [&](int d, size_t bytes) {
    Vector x;
    std::memcpy(&x, row + d, sizeof x);
#pragma GCC unroll 4
    for (int i = 0; i < kStepKeys; ++i) {
      Vector y{};
      std::memcpy(&y, keys.first + i * keys.pitch + d, bytes);
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

// to += p[0] * values[0] + ... in order, for kVectors vectors, which stay in registers.
template <int kVectors, class A>
[[gnu::always_inline]] inline void add_to_vectors(const A* p, const WideRows<A>& values, int count, A* to) {
  constexpr int kWidth = kVectorWidth<A>;
  typedef A Vector __attribute__((vector_size(64)));
  Vector sums[kVectors];
  std::memcpy(sums, to, sizeof sums);
  for (int j = 0; j < count; ++j) {
    const A* const value = values.first + j * values.pitch;
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      Vector y;
      std::memcpy(&y, value + i * kWidth, sizeof y);
      sums[i] += p[j] * y;
    }
  }
  std::memcpy(to, sums, sizeof sums);
}

// to += p[0] * values[0] + ... in order, for `size` elements.
template <class A>
[[gnu::always_inline]] inline void add_products(const A* p, const WideRows<A>& values, int count, int size, A* to) {
  constexpr int kWidth = kVectorWidth<A>;
  int d = 0;
  const auto add = [&]<int kVectors>(std::integral_constant<int, kVectors>) {
    for (; d + kVectors * kWidth <= size; d += kVectors * kWidth)
      add_to_vectors<kVectors>(p, WideRows<A>{values.first + d, values.pitch}, count, to + d);
  };
  add(std::integral_constant<int, 8>());
  add(std::integral_constant<int, 4>());
  add(std::integral_constant<int, 2>());
  add(std::integral_constant<int, 1>());
  for (int j = 0; j < count; ++j)
    for (int i = d; i < size; ++i) to[i] += p[j] * values.first[j * values.pitch + i];
}

// Reads up to kWideKeys rows in the compute type.
template <class T>
class RowReader {
 public:
  using A = compute_t<T>;

  // The rows themselves, or a copy with zeros up to a whole step.
  [[gnu::always_inline]] WideRows<A> read(const T* first, int64_t pitch, int count, int size) {
    if constexpr (std::is_same_v<T, A>)
      if (count % kStepKeys == 0) return {first, pitch};
    for (int i = 0; i < count; ++i) copy_widened(first + i * pitch, buffer_ + i * size, size);
    const int whole = (count + kStepKeys - 1) / kStepKeys * kStepKeys;
    std::fill_n(buffer_ + count * size, (whole - count) * size, A(0));
    return {buffer_, size};
  }

 private:
  alignas(64) A buffer_[kWideKeys * kMaxFeatures];
};

}  // namespace fusedops::cpu
