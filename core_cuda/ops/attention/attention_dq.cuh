// Accumulation of dq in the workspace of the sm80 backward. The sums have the layout of mma fragments, so that a warp
// accesses adjacent words; row-major, it would access 8 words in each of 8 lines.
#pragma once

#include "ops/attention/attention_workspace.h"

namespace fusedops::cuda {

// A fragment of mma.m16n8k16, 16 rows of 8 columns: a lane has two adjacent columns in row lane / 4 and in the row 8
// below.
struct DqFragment {
  static constexpr int kRows = 16, kColumns = 8, kSize = kRows * kColumns;

  // `row` is a multiple of 16 (see BackwardSums::dq_row), `column` a multiple of 8.
  __device__ DqFragment(const BackwardSums& sums, int64_t row, int column)
      : first(sums.dq + row * sums.pitch + column * kRows) {}

  // Each lane stores or adds its four elements asynchronously. Atomic additions to global memory flush subnormal terms
  // and sums to zero.
  __device__ void store(int i, const float (&sums)[4]) const {
    float* const to = lanes(i);
#if __CUDA_ARCH__ >= 900
    *reinterpret_cast<float4*>(to) = {sums[0], sums[1], sums[2], sums[3]};
#else
#pragma unroll
    for (int e = 0; e < 4; ++e) to[e * 32] = sums[e];
#endif
  }
  __device__ void add(int i, const float (&sums)[4]) const {
    float* const to = lanes(i);
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(sums[0]), "f"(sums[1]),
                 "f"(sums[2]), "f"(sums[3])
                 : "memory");
#else
#pragma unroll
    for (int e = 0; e < 4; ++e)
      asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + e * 32), "f"(sums[e]) : "memory");
#endif
  }

  // Reads a row of the upper half and the row 8 below.
  __device__ void read(int row, float (&upper)[kColumns], float (&lower)[kColumns]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#if __CUDA_ARCH__ >= 900  // the four elements of lane i
      const float4 four = *reinterpret_cast<const float4*>(first + row * 16 + i * 4);
      upper[2 * i] = four.x, upper[2 * i + 1] = four.y, lower[2 * i] = four.z, lower[2 * i + 1] = four.w;
#else  // element i of the four lanes of the row
      const float4 four = *reinterpret_cast<const float4*>(first + i * 32 + row * 4);
      float (&half)[kColumns] = i < 2 ? upper : lower;
      half[i % 2] = four.x, half[2 + i % 2] = four.y, half[4 + i % 2] = four.z, half[6 + i % 2] = four.w;
#endif
    }
  }

  float* first;

 private:
  // First element of the lane, i fragments further right.
  __device__ float* lanes(int i) const {
#if __CUDA_ARCH__ >= 900
    return first + i * kSize + threadIdx.x % 32 * 4;
#else
    return first + i * kSize + threadIdx.x % 32;
#endif
  }
};

}  // namespace fusedops::cuda
