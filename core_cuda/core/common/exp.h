// 2^x for host and device, without calls and branches, so that compilers vectorize loops over it. Unless stated
// otherwise, all forms are right for NaN, infinities and subnormal results.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/common/element.h"

namespace fusedops {

inline constexpr double kLog2E = 1.4426950408889634074;

namespace host {

// 2^f for |f| <= 1/2: a minimax polynomial with relative error 1.3e-8, from Remez' algorithm with the coefficients
// rounded to float one after the other.
inline float exp2_fraction(float f) {
  float p = 0x1.1799eap-13f;
  p = p * f + 0x1.5ef4dcp-10f;
  p = p * f + 0x1.3b6816p-7f;
  p = p * f + 0x1.c6af9ep-5f;
  p = p * f + 0x1.ebfb94p-3f;
  p = p * f + 0x1.62e43p-1f;
  return p * f + 1.0f;
}

inline constexpr float kRoundToInteger = 0x1.8p23f;  // adding and subtracting it rounds to the nearest integer

inline int32_t integer_of(float shifted) {
  return static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRoundToInteger));
}

inline float power_of_two(int32_t n) { return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23); }

// p * 2^n in two steps, since 2^n alone may overflow where the result does not.
inline float scaled(float p, int32_t n) {
  const int32_t half = n >> 1;
  return p * power_of_two(half) * power_of_two(n - half);
}

// A bitwise selection of a or b. The compiler cannot turn it into a branch, which would prevent vectorization.
inline float choose(bool condition, float a, float b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return std::bit_cast<float>((std::bit_cast<uint32_t>(a) & mask) | (std::bit_cast<uint32_t>(b) & ~mask));
}

// NaN is propagated.
inline float clamped(float x, float low, float high) {
  x = choose(x < low, low, x);
  return choose(x > high, high, x);
}

}  // namespace host

// 2^x; within 1 ulp on the host, 2 on the device.
FUSEDOPS_HD float exp2_(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  x = host::clamped(x, -151, 128);
  const float shifted = x + host::kRoundToInteger;
  return host::scaled(host::exp2_fraction(x - (shifted - host::kRoundToInteger)), host::integer_of(shifted));
#endif
}

// 2^x, flushed to zero if subnormal, for x <= 127. The cheapest form, for sums whose largest term is 1.
FUSEDOPS_HD float exp2_or_zero(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  x = host::choose(x < -127, -127, x);
  const float shifted = x + host::kRoundToInteger;
  return host::exp2_fraction(x - (shifted - host::kRoundToInteger)) * host::power_of_two(host::integer_of(shifted));
#endif
}

FUSEDOPS_HD double exp2_(double x) { return exp2(x); }
FUSEDOPS_HD double exp2_or_zero(double x) { return exp2(x); }

}  // namespace fusedops
