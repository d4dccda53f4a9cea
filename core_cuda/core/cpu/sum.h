// Sums on the CPU whose order depends on the shape alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/common/numeric.h"

namespace fusedops::cpu {

inline constexpr int kAccumulators = 32;

// The sum of term(i). Term i goes to accumulator i % kAccumulators, which the compiler maps to vector registers. The
// accumulators are then added by halving.
template <class A, class Term>
A interleaved_sum(int64_t n, Term term) {
  A accumulators[kAccumulators] = {};
  int64_t i = 0;
  for (; i + kAccumulators <= n; i += kAccumulators)
    for (int k = 0; k < kAccumulators; ++k) accumulators[k] += term(i + k);
  for (int k = 0; i < n; ++i, ++k) accumulators[k] += term(i);
  for (int width = kAccumulators / 2; width > 0; width /= 2)
    for (int k = 0; k < width; ++k) accumulators[k] += accumulators[k + width];
  return accumulators[0];
}

template <class A>
struct TwoSums {
  A first = 0, second = 0;
  TwoSums operator+(const TwoSums& other) const { return {first + other.first, second + other.second}; }
};

// Two sums in one pass, each in the order of interleaved_sum(); terms(i) returns a term of each.
template <class A, class Terms>
TwoSums<A> interleaved_sums(int64_t n, Terms terms) {
  A first[kAccumulators] = {}, second[kAccumulators] = {};
  const auto add = [&](int64_t i, int k) {
    const TwoSums<A> term = terms(i);
    first[k] += term.first;
    second[k] += term.second;
  };
  int64_t i = 0;
  for (; i + kAccumulators <= n; i += kAccumulators)
#pragma GCC ivdep
    for (int k = 0; k < kAccumulators; ++k) add(i + k, k);
  for (int k = 0; i < n; ++i, ++k) add(i, k);
  for (int width = kAccumulators / 2; width > 0; width /= 2)
    for (int k = 0; k < width; ++k) {
      first[k] += first[k + width];
      second[k] += second[k + width];
    }
  return {first[0], second[0]};
}

// A pairwise sum, whose error grows with log(n): Higham, "The accuracy of floating point summation", 1993.
template <class A>
A pairwise_sum(const A* values, int64_t n) {
  if (n <= 128) return interleaved_sum<A>(n, [=](int64_t i) { return values[i]; });
  const int64_t half = n / 2;
  return pairwise_sum(values, half) + pairwise_sum(values + half, n - half);
}

// The pairwise sum of blocks; block(i) returns the sum of block i, and is called once for each i in order.
template <class Sum, class Block>
Sum pairwise_blocks(int64_t begin, int64_t count, Block&& block) {
  if (count == 0) return Sum{};
  if (count == 1) return block(begin);
  const int64_t half = count / 2;
  const Sum first = pairwise_blocks<Sum>(begin, half, block);
  return first + pairwise_blocks<Sum>(begin + half, count - half, block);
}

inline constexpr int64_t kColumns = 256;  // summed together, within the L1 cache

// sums[j] = the sum over rows of rows[i * stride + j], pairwise, for j < n <= kColumns.
template <class A>
void pairwise_columns(const A* rows, int64_t count, int64_t stride, int64_t n, A* sums) {
  constexpr int64_t kSequential = 8;
  if (count > kSequential) {
    A others[kColumns];
    const int64_t half = count / 2;
    pairwise_columns(rows, half, stride, n, sums);
    pairwise_columns(rows + half * stride, count - half, stride, n, others);
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) sums[j] += others[j];
  } else {
    std::fill_n(sums, n, A(0));
    for (int64_t i = 0; i < count; ++i)
#pragma GCC ivdep
      for (int64_t j = 0; j < n; ++j) sums[j] += rows[i * stride + j];
  }
}

// out[j] = the sum of column j of partials, [count][columns], rounded to out's dtype; zero if there are no rows.
template <class A>
Status sum_partials(const Context& context, const A* partials, int64_t count, int64_t columns, const View& out) {
  return dispatch(out.dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<A, compute_t<T>>) {
      return Status::error("fusedops: a sum in another dtype than the compute dtype");
    } else {
      const int64_t blocks = (columns + kColumns - 1) / kColumns, nanoseconds_per_block = 50 + 20 * count;
      context.parallel_for(blocks, nanoseconds_per_block, [&](int64_t begin, int64_t end) {
        A sums[kColumns];
        for (int64_t start = begin * kColumns; start < std::min(end * kColumns, columns); start += kColumns) {
          const int64_t n = std::min(kColumns, columns - start);
          pairwise_columns(partials + start, count, columns, n, sums);
          for (int64_t j = 0; j < n; ++j) static_cast<T*>(out.data)[start + j] = from_compute<T>(sums[j]);
        }
      });
      return {};
    }
  });
}

}  // namespace fusedops::cpu
