// What exponentials of a softmax are relative to, while its maximum is not yet known.
#pragma once

#include <limits>

#include "core/common/exp.h"

namespace fusedops::cuda {

// The maximum of nothing, and what is masked.
template <class A>
inline constexpr A kNothing = -std::numeric_limits<A>::infinity();

// The base that exponentials are relative to. -inf is no base: -inf minus -inf would be NaN.
template <class A>
__device__ A base_of(A max) {
  return max == kNothing<A> ? A(0) : max;
}

// The factor that makes exponentials relative to `max` relative to a larger maximum.
template <class A>
__device__ A share_of(A max, A larger, A factor) {
  return exp2_((max - base_of(larger)) * factor);
}

}  // namespace fusedops::cuda
