// The element functions of programs, for host and device. On the host most have no calls and no branches.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/common/element.h"
#include "core/common/exp.h"
#include "core/common/formulas.h"

#ifndef __CUDA_ARCH__
namespace fusedops::host {

// x log2(e) = n + f, for |x| < 1000.
struct Powers {
  float shifted, f;
  int32_t n() const { return integer_of(shifted); }
};

inline Powers powers_of_e(float x) {
  constexpr float kHigh = float(kLog2E), kLow = float(kLog2E - double(kHigh));
  const float shifted = x * kHigh + kRoundToInteger, n = shifted - kRoundToInteger;
  return {shifted, (x * kHigh - n) + x * kLow};
}

// log(1 + f) + k log(2) + c for 1 + f between the roots of 1/2 and 2, and a small c: the series of fdlibm's logf
// ("Freely Distributable LIBM", Sun Microsystems, 1993), within 1 ulp.
inline float log_of(float f, float k, float c) {
  constexpr float kHigh = 6.9313812256e-01f, kLow = 9.0580006145e-06f;  // log(2)
  const float s = f / (2 + f), z = s * s, w = z * z;
  const float odd = w * (0.40000972152f + w * 0.24279078841f), even = z * (0.66666662693f + w * 0.28498786688f);
  const float half = 0.5f * f * f;
  return s * (half + (odd + even)) + (k * kLow + c) - half + f + k * kHigh;
}

// x = 2^k (1 + f), for x > 0 that is not subnormal.
struct Parts {
  float k, f;
};

inline Parts parts_of(float x) {
  constexpr uint32_t kRootHalf = 0x3f3504f3;
  const uint32_t bits = std::bit_cast<uint32_t>(x) + (0x3f800000 - kRootHalf);
  const auto k = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  return {k, std::bit_cast<float>((bits & 0x7fffff) + kRootHalf) - 1};
}

// The value of a logarithm if its argument x is not a positive finite number.
inline float log_or_limit(float log, float x) {
  log = choose(x < INFINITY, log, x);  // infinity and NaN are propagated
  log = choose(x == 0, -INFINITY, log);
  return choose(x < 0, NAN, log);
}

}  // namespace fusedops::host
#endif

namespace fusedops::program {

FUSEDOPS_HD double exp_(double x) { return exp(x); }
FUSEDOPS_HD double log_(double x) { return log(x); }
FUSEDOPS_HD double log1p_(double x) { return log1p(x); }
FUSEDOPS_HD double expm1_(double x) { return expm1(x); }

// FUSEDOPS_NARROW marks programs that read and write 16 bits, where a GPU has time for about 27 instructions per
// element. Approximations are then within 1e-5 of the value, a hundredth of the rounding to 16 bits.
#if defined(__CUDA_ARCH__) && defined(FUSEDOPS_NARROW)
FUSEDOPS_HD float exp_(float x) { return exp2_(x * float(kLog2E)); }

FUSEDOPS_HD float div_(float x, float y) {
  float z;
  asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

FUSEDOPS_HD float sqrt_(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#elif defined(__CUDA_ARCH__)
FUSEDOPS_HD float exp_(float x) { return expf(x); }
FUSEDOPS_HD float div_(float x, float y) { return x / y; }
FUSEDOPS_HD float sqrt_(float x) { return sqrtf(x); }
#else
FUSEDOPS_HD float div_(float x, float y) { return x / y; }
FUSEDOPS_HD float sqrt_(float x) { return sqrtf(x); }
#endif

#ifdef __CUDA_ARCH__
FUSEDOPS_HD float log_(float x) { return logf(x); }
FUSEDOPS_HD float log1p_(float x) { return log1pf(x); }
FUSEDOPS_HD float expm1_(float x) { return expm1f(x); }
#else
// Within 1.5 ulp.
FUSEDOPS_HD float exp_(float x) {
  x = host::clamped(x, -105, 89);
  const host::Powers powers = host::powers_of_e(x);
  return host::scaled(host::exp2_fraction(powers.f), powers.n());
}

// Within 1 ulp.
FUSEDOPS_HD float log_(float x) {
  const bool subnormal = x < 0x1p-126f;
  const host::Parts parts = host::parts_of(host::choose(subnormal, x * 0x1p25f, x));
  return host::log_or_limit(host::log_of(parts.f, parts.k - host::choose(subnormal, 25, 0), 0), x);
}

// Within 1.5 ulp. The rounding error of 1 + x is added to the logarithm.
FUSEDOPS_HD float log1p_(float x) {
  const float u = 1 + x;
  const host::Parts parts = host::parts_of(u);
  const float lost = host::choose(x > 1, 1 - (u - x), x - (u - 1)) / u;
  const bool small = parts.k == 0;
  const float log = host::log_of(host::choose(small, x, parts.f), parts.k, host::choose(small, 0, lost));
  return host::choose(x == 0, x, host::log_or_limit(log, u));
}

// Within 3 ulp. As in activations::tanh_, 2^n 2^f - 1 is decomposed; halved, since 2^n may overflow.
FUSEDOPS_HD float expm1_(float x) {
  const host::Powers powers = host::powers_of_e(host::clamped(x, -20, 89));
  const float power = host::power_of_two(powers.n() - 1);
  const float p = activations::exp2m1_fraction(powers.f);
  return copysignf((power * p + (power - 0.5f)) * 2, x);
}
#endif

FUSEDOPS_HD double div_(double x, double y) { return x / y; }
FUSEDOPS_HD double sqrt_(double x) { return sqrt(x); }
FUSEDOPS_HD double sin_(double x) { return sin(x); }
FUSEDOPS_HD double cos_(double x) { return cos(x); }
FUSEDOPS_HD double erf_(double x) { return erf(x); }
FUSEDOPS_HD double floor_(double x) { return floor(x); }
FUSEDOPS_HD double pow_(double x, double y) { return pow(x, y); }
FUSEDOPS_HD float sin_(float x) { return sinf(x); }
FUSEDOPS_HD float cos_(float x) { return cosf(x); }
FUSEDOPS_HD float erf_(float x) { return erff(x); }
FUSEDOPS_HD float pow_(float x, float y) { return powf(x, y); }

#ifdef __CUDA_ARCH__
FUSEDOPS_HD double rsqrt_(double x) { return rsqrt(x); }
FUSEDOPS_HD float rsqrt_(float x) { return rsqrtf(x); }
FUSEDOPS_HD float floor_(float x) { return floorf(x); }
#else
FUSEDOPS_HD double rsqrt_(double x) { return 1 / sqrt(x); }
FUSEDOPS_HD float rsqrt_(float x) { return 1 / sqrtf(x); }

// floorf would be a call per element. From 2^23 on, all numbers are integers.
FUSEDOPS_HD float floor_(float x) {
  const float a = fabsf(x), nearest = copysignf((a + 0x1p23f) - 0x1p23f, x);
  return host::choose(a < 0x1p23f, nearest - host::choose(nearest > x, 1, 0), x);
}
#endif

// Each operation rounds separately: the program decides on fused multiply-adds. The compiler's contraction would differ
// between variants and stages of a kernel, and so would the bits.
#ifdef __CUDA_ARCH__
FUSEDOPS_HD float add_(float a, float b) { return __fadd_rn(a, b); }
FUSEDOPS_HD float sub_(float a, float b) { return __fsub_rn(a, b); }
FUSEDOPS_HD float mul_(float a, float b) { return __fmul_rn(a, b); }
FUSEDOPS_HD double add_(double a, double b) { return __dadd_rn(a, b); }
FUSEDOPS_HD double sub_(double a, double b) { return __dsub_rn(a, b); }
FUSEDOPS_HD double mul_(double a, double b) { return __dmul_rn(a, b); }
#endif

template <class A>
FUSEDOPS_HD A abs_(A x) {
  return activations::magnitude(x);
}

template <class A>
FUSEDOPS_HD A tanh_(A x) {
  return activations::tanh_(x).value;
}

template <class A>
FUSEDOPS_HD A sigmoid_(A x) {
#if defined(__CUDA_ARCH__) && defined(FUSEDOPS_NARROW)
  return activations::logistic(x, exp2_or_zero(-(activations::magnitude(x) * A(kLog2E)))).value;
#else
  return activations::logistic(x, activations::decay(x)).value;
#endif
}

// The standard normal distribution function.
template <class A>
FUSEDOPS_HD A cdf_(A x) {
  return activations::normal(x).value;
}

template <class A>
FUSEDOPS_HD A pdf_(A x) {
  return activations::normal(x).slope;
}

template <class A>
FUSEDOPS_HD A where_(A condition, A a, A b) {
  return activations::choose(condition != 0, a, b);
}

// Zeros and NaN are propagated.
template <class A>
FUSEDOPS_HD A sign_(A x) {
  return activations::choose(x > 0, A(1), activations::choose(x < 0, A(-1), x));
}

// NaN is propagated.
template <class A>
FUSEDOPS_HD A min_(A a, A b) {
  return activations::choose((a < b) | (a != a), a, b);
}

template <class A>
FUSEDOPS_HD A max_(A a, A b) {
  return activations::choose((a > b) | (a != a), a, b);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
FUSEDOPS_HD float min_(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

FUSEDOPS_HD float max_(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif

}  // namespace fusedops::program
