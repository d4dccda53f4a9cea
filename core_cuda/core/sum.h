// Sums on the CPU whose order follows from the shape alone.
#pragma once

#include <cstdint>

namespace fusedops::cpu {

inline constexpr int kLanes = 32;

// sum of term(i): term i goes to lane i % kLanes, which the compiler maps to vector registers; then half of the lanes
// is added to the other half, and so on.
template <class A, class Term>
A lane_sum(int64_t n, Term term) {
  A lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

// Pairwise, so that the error grows with log(n): Higham, "The accuracy of floating point summation", 1993.
template <class A>
A pairwise_sum(const A* values, int64_t n) {
  if (n <= 128) return lane_sum<A>(n, [=](int64_t i) { return values[i]; });
  const int64_t half = n / 2;
  return pairwise_sum(values, half) + pairwise_sum(values + half, n - half);
}

}  // namespace fusedops::cpu
