// Element types for host, device and NVRTC, which has no CUDA headers.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#ifdef __CUDACC__
#define FUSEDOPS_HD __host__ __device__ __forceinline__
#else
#define FUSEDOPS_HD inline
#endif
#if defined(__AVX__) || defined(__F16C__)
#include <immintrin.h>
#endif

namespace fusedops {

// Storage only: arithmetic happens in compute_t.
struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

template <class T>
using compute_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

namespace host {

// Conversion of IEEE binary16 by its definition, for processors without a conversion instruction.
inline float float_from_f16(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 0x1f, mantissa = h & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = float(mantissa) * 0x1p-24f;  // subnormal
  return sign ? -magnitude : magnitude;
}

inline uint16_t f16_from_float(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f), magnitude = bits & 0x7fffffff;
  const uint16_t sign = (bits >> 16) & 0x8000;
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to infinity
  if (magnitude < 0x38800000) {  // subnormal: the float addition rounds to the nearest multiple of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | uint16_t(std::bit_cast<uint32_t>(shifted) - 0x3f000000);
  }
  return sign | uint16_t((magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13);
}

}  // namespace host

FUSEDOPS_HD double to_compute(double x) { return x; }
FUSEDOPS_HD float to_compute(float x) { return x; }
FUSEDOPS_HD float to_compute(bf16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }
FUSEDOPS_HD float to_compute(f16 x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#elif defined(__F16C__)
  return _cvtsh_ss(x.bits);
#else
  return host::float_from_f16(x.bits);
#endif
}

// Rounds to nearest even, once.
template <class T>
FUSEDOPS_HD T from_compute(compute_t<T> x) {
  if constexpr (std::is_same_v<T, f16>) {
#if defined(__CUDA_ARCH__)
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#elif defined(__F16C__)
    return {uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))};
#else
    return {host::f16_from_float(x)};
#endif
  } else if constexpr (std::is_same_v<T, bf16>) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#else
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return {uint16_t((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded)};
#endif
  } else {
    return x;
  }
}

}  // namespace fusedops
