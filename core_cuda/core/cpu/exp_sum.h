// The maximum of a row and the sum of its exponentials, on the CPU: the first step of softmax and cross_entropy.
#pragma once

#include <algorithm>
#include <limits>

#include "core/common/exp.h"
#include "core/cpu/elementwise.h"
#include "core/cpu/sum.h"

namespace fusedops::cpu {

// The largest of values, -inf if there are none. NaN is skipped here; the differences to the maximum propagate it.
template <class A>
A interleaved_max(const A* values, int64_t n) {
  A accumulators[kAccumulators];
  std::fill_n(accumulators, kAccumulators, -std::numeric_limits<A>::infinity());
  const auto larger = [](A a, A b) { return a > b ? a : b; };
  int64_t i = 0;
  for (; i + kAccumulators <= n; i += kAccumulators)
    for (int k = 0; k < kAccumulators; ++k) accumulators[k] = larger(values[i + k], accumulators[k]);
  for (int k = 0; i < n; ++i, ++k) accumulators[k] = larger(values[i], accumulators[k]);
  for (int width = kAccumulators / 2; width > 0; width /= 2)
    for (int k = 0; k < width; ++k) accumulators[k] = larger(accumulators[k + width], accumulators[k]);
  return accumulators[0];
}

// 2^x * kExpScale<A> for x <= 0. With the scale, 2^x is normal wherever its true value is at least the smallest
// subnormal number, and 2^n is one factor. Quotients of two scaled values are right, subnormal ones included.
template <class A>
inline constexpr A kExpScale = std::is_same_v<A, float> ? A(0x1p64) : A(1);

inline double scaled_exp2(double x) { return exp2_(x); }
inline float scaled_exp2(float x) {
  x = host::choose(x < -151, -151, x);
  const float shifted = x + host::kRoundToInteger;
  const float power = host::power_of_two(host::integer_of(shifted) + 64);
  return host::exp2_fraction(x - (shifted - host::kRoundToInteger)) * power;
}

template <class A>
struct ExpSum {
  A max = -std::numeric_limits<A>::infinity();
  A sum = 0;  // of 2^((v - max) * factor) * kExpScale
};

// Reduces a row of n values v. block(start, size, buffer) returns `size` of them in the compute type, either in memory
// or computed into the buffer. It is called twice, the second time on cached data. The terms of the sum are written to
// `terms`, [n], if it is not null.
template <class A, class Block>
ExpSum<A> exp_sum(int64_t n, A factor, A* terms, Block&& block) {
  ExpSum<A> row;
  A v_buffer[kBlock], term_buffer[kBlock];
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t size = std::min(kBlock, n - start);
    row.max = std::max(row.max, interleaved_max(block(start, size, v_buffer), size));
  }
  const A max = row.max;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t size = std::min(kBlock, n - start);
    const A* v = block(start, size, v_buffer);
    A* of_block = terms ? terms + start : term_buffer;
#pragma GCC ivdep
    for (int64_t i = 0; i < size; ++i) of_block[i] = scaled_exp2((v[i] - max) * factor);
    row.sum += interleaved_sum<A>(size, [=](int64_t i) { return of_block[i]; });
  }
  return row;
}

}  // namespace fusedops::cpu
