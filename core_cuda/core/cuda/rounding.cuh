// Arithmetic that the compiler must not contract. Contraction differs between kernels, and so would the bits of aligned
// and unaligned rows. It would also skip overflows of the product.
#pragma once

namespace fusedops::cuda {

__device__ inline float product(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double product(double a, double b) { return __dmul_rn(a, b); }
__device__ inline float sum(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double sum(double a, double b) { return __dadd_rn(a, b); }
__device__ inline float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }  // a * b + c, explicitly fused
__device__ inline double fused(double a, double b, double c) { return __fma_rn(a, b, c); }

}  // namespace fusedops::cuda
