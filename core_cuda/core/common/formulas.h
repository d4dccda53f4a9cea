// Building blocks of activations for host and device: values and slopes, of which the compiler drops the unused one. As
// in exp.h, the float forms have no calls and no branches, so loops are vectorized.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/common/element.h"
#include "core/common/exp.h"

namespace fusedops {

// a * b + c, rounded once on a GPU. Programs are compiled there without contraction, so a formula has the same bits
// wherever it is inlined. On the host the compiler contracts if the processor has FMA.
template <class A>
FUSEDOPS_HD A fma_(A a, A b, A c) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(A) == sizeof(double))
    return __fma_rn(a, b, c);
  else
    return __fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

template <class A>
struct Activated {
  A value, slope;
};

namespace activations {

FUSEDOPS_HD double choose(bool condition, double a, double b) { return condition ? a : b; }
FUSEDOPS_HD float choose(bool condition, float a, float b) {
#ifdef __CUDA_ARCH__
  return condition ? a : b;
#else
  return host::choose(condition, a, b);
#endif
}

// 1 / x for x >= 1; within 1 ulp.
FUSEDOPS_HD double reciprocal(double x) { return 1 / x; }
FUSEDOPS_HD float reciprocal(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1 / x;
#endif
}

// a * b + c, rounded once.
FUSEDOPS_HD double multiply_add(double a, double b, double c) { return fma(a, b, c); }
FUSEDOPS_HD float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }

FUSEDOPS_HD double magnitude(double x) { return fabs(x); }
FUSEDOPS_HD float magnitude(float x) { return fabsf(x); }

// e^-|x|, within 1.5 ulp. On the host as in exp.h, but the argument has one sign, so only subnormal results need care:
// the power is scaled by 2^24 and the product scaled back, which rounds once.
FUSEDOPS_HD double decay(double x) { return exp(-fabs(x)); }
FUSEDOPS_HD float decay(float x) {
#ifdef __CUDA_ARCH__
  return expf(-fabsf(x));
#else
  constexpr float kHigh = float(kLog2E), kLow = float(kLog2E - double(kHigh));
  constexpr float kRound = 0x1.8p23f + 127 + 24;             // leaves the exponent of 2^(n + 24) in the lowest bits
  const float a = choose(fabsf(x) > 105, 105.0f, fabsf(x));  // n = -151 gives a power of zero
  const float shifted = kRound - kHigh * a, n = shifted - kRound;
  const float f = (-n - kHigh * a) - kLow * a;
  return host::exp2_fraction(f) * std::bit_cast<float>(std::bit_cast<uint32_t>(shifted) << 23) * 0x1p-24f;
#endif
}

// The logistic function from t = e^-|x|, and its slope. Neither tail cancels, so both have small relative errors.
template <class A>
FUSEDOPS_HD Activated<A> logistic(A x, A t) {
  const A above = reciprocal(A(1) + t), below = t * above;  // at |x| and -|x|; their sum is 1
  return {choose(x < 0, below, above), above * below};
}

// Distribution function and density of the standard normal distribution.
FUSEDOPS_HD Activated<double> normal(double x) {
  constexpr double kRootHalf = 0.70710678118654752440, kDensity = 0.39894228040143267794;
  return {0.5 * erfc(-kRootHalf * x), kDensity * exp(-0.5 * x * x)};
}

// The tail beyond |x| is Q = t P(t) e^(-x²/2) with t = 1 / (1 + p |x|), a form of Hastings' ("Approximations for
// Digital Computers", 1955).
//
// p and P were fitted for this file with Remez' algorithm, the coefficients rounded to float one after the other. They
// minimize the error of Q relative to Q (1 + x²): 2.3e-8 for |x| <= 14, beyond which Q underflows. The rounding of x²
// alone costs as much. The error of the function is at most 2e-7, most of it from t.
FUSEDOPS_HD Activated<float> normal(float x) {
  constexpr float kDensity = 0.39894228f, kP = 0.3975f;
  const float t = reciprocal(fma_(kP, magnitude(x), 1.0f));
  const float bell = exp2_or_zero(x * x * float(-0.5 * kLog2E));
  float p = -0x1.268718p-5f;
  p = fma_(p, t, 0x1.7bb51cp-3f);
  p = fma_(p, t, -0x1.65b2bap-2f);
  p = fma_(p, t, 0x1.d76c0ap-3f);
  p = fma_(p, t, 0x1.9d8d34p-9f);
  p = fma_(p, t, 0x1.361028p-3f);
  p = fma_(p, t, 0x1.40631cp-3f);
  p = fma_(p, t, 0x1.44fc9ap-3f);
  const float tail = p * t * bell;
  return {choose(x < 0, tail, 1 - tail), kDensity * bell};
}

// 2^f - 1 for |f| <= 1/2: f times a minimax polynomial with relative error 2.1e-8, from Remez' algorithm.
FUSEDOPS_HD float exp2m1_fraction(float f) {
  float p = 0x1.430904p-13f;
  p = fma_(p, f, 0x1.5f07b4p-10f);
  p = fma_(p, f, 0x1.3b2ba0p-7f);
  p = fma_(p, f, 0x1.c6af6ep-5f);
  p = fma_(p, f, 0x1.ebfbdep-3f);
  p = fma_(p, f, 0x1.62e430p-1f);
  return p * f;
}

FUSEDOPS_HD Activated<double> tanh_(double x) {
  const double t = exp(-2 * fabs(x)), r = 1 / (1 + t);
  return {tanh(x), 4 * t * r * r};
}

// tanh|x| = (1 - t) / (1 + t) with t = e^(-2|x|) = 2^n 2^f. Since the difference cancels for small x, it is computed as
// 1 - t = (1 - 2^n) - 2^n (2^f - 1).
FUSEDOPS_HD Activated<float> tanh_(float x) {
  constexpr float kHigh = float(2 * kLog2E), kLow = float(2 * kLog2E - double(kHigh)), kRound = 0x1.8p23f;
  const float a = choose(magnitude(x) > 44, 44.0f, magnitude(x));  // 2^n is zero there
  const float shifted = fma_(-kHigh, a, kRound), n = shifted - kRound;
  const float f = fma_(-kLow, a, fma_(-kHigh, a, -n));
  const float p = exp2m1_fraction(f);
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + std::bit_cast<uint32_t>(1.0f));
  const float t = fma_(power, p, power), r = reciprocal(1 + t);
  return {copysignf(fma_(-power, p, 1 - power) * r, x), 4 * t * r * r};
}

}  // namespace activations
}  // namespace fusedops
