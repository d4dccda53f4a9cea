// The maximum of a row and the sum of its exponentials, on the CPU: softmax and cross_entropy begin with it.
#pragma once

#include <algorithm>
#include <limits>

#include "core/elementwise.h"
#include "core/exp.h"
#include "core/sum.h"

namespace fusedops::cpu {

// The largest of values, -inf if there are none. A NaN is passed over: whoever subtracts it meets it again.
template <class A>
A lane_max(const A* values, int64_t n) {
  A lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<A>::infinity());
  const auto larger = [](A a, A b) { return a > b ? a : b; };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = larger(values[i + lane], lanes[lane]);
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] = larger(values[i], lanes[lane]);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] = larger(lanes[lane + width], lanes[lane]);
  return lanes[0];
}

template <class A>
struct ExpSum {
  A max = -std::numeric_limits<A>::infinity();
  A sum = 0;  // of 2^((v - max) * factor)
};

// Over a row of n values v, of which block(start, size, buffer) returns `size` in the compute type: those in memory, or
// made in the buffer. They are asked for twice, the second time out of the cache.
template <class A, class Block>
ExpSum<A> exp_sum(int64_t n, A factor, Block&& block) {
  ExpSum<A> row;
  A buffer[kBlock];
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t size = std::min(kBlock, n - start);
    row.max = std::max(row.max, lane_max(block(start, size, buffer), size));
  }
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t size = std::min(kBlock, n - start);
    const A* v = block(start, size, buffer);
    row.sum += lane_sum<A>(size, [=](int64_t i) { return exp2_or_zero((v[i] - row.max) * factor); });
  }
  return row;
}

}  // namespace fusedops::cpu
