// Running maximum of an online softmax, and rescaling.
#pragma once

#include <limits>

#include "core/common/exp.h"

namespace fusedops::cuda {

// Initial running maximum, and the value of masked scores.
template <class A>
inline constexpr A kNegInf = -std::numeric_limits<A>::infinity();

// The maximum that is subtracted in exponents: 0 for -inf, since -inf minus -inf is NaN.
template <class A>
__device__ A base_of(A max) {
  return max == kNegInf<A> ? A(0) : max;
}

// Factor that rescales exponentials relative to `max` to a larger maximum.
template <class A>
__device__ A rescale_factor(A max, A larger, A factor) {
  return exp2_((max - base_of(larger)) * factor);
}

}  // namespace fusedops::cuda
