// Sums over a row on the CPU, shared by the norms.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/cpu/elementwise.h"
#include "core/cpu/sum.h"

namespace fusedops::cpu {

// The sum of body(start, n, row...) over the blocks of rows of equal length. body gets n elements of each row, from
// `start` on, in the compute type A.
template <class A, class Sum, class Body, class... Rows>
Sum sum_of_blocks(int64_t cols, Body body, const Rows*... rows) {
  return pairwise_blocks<Sum>(0, (cols + kBlock - 1) / kBlock, [&](int64_t block) {
    const int64_t start = block * kBlock, n = std::min(kBlock, cols - start);
    return [&]<size_t... I>(std::index_sequence<I...>) {
      A buffers[sizeof...(rows)][kBlock];
      return body(start, n, widened(rows + start, buffers[I], n)...);
    }(std::index_sequence_for<Rows...>());
  });
}

template <class A>
struct Moments {
  A mean;  // 0 for RMSNorm
  A rstd;
};

template <class T, class A = compute_t<T>>
Moments<A> rms_of(const T* row, int64_t cols, double eps) {
  const auto squares = [](int64_t, int64_t n, const A* x) {
    return interleaved_sum<A>(n, [=](int64_t i) { return x[i] * x[i]; });
  };
  return {A(0), A(1) / std::sqrt(sum_of_blocks<A, A>(cols, squares, row) / A(cols) + A(eps))};
}

}  // namespace fusedops::cpu
