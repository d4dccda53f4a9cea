// The sums of dq in the workspace of the backward for 8.0 and later: as many kernels add to them, in the fragments that
// their warps hold, so that each access of a warp is of neighbouring words. Rows of queries would be accesses of 8
// words in 8 lines.
#pragma once

#include "ops/attention/attention_workspace.h"

namespace fusedops::cuda {

// 16 rows of 8 columns, a fragment of mma.m16n8k16: of a lane, two neighbouring columns in row lane / 4, and in the row
// 8 below.
struct DqFragment {
  static constexpr int kRows = 16, kColumns = 8, kSize = kRows * kColumns;

  // Of rows from a multiple of 16 on, see BackwardSums::dq_row, and columns from a multiple of 8 on.
  __device__ DqFragment(const BackwardSums& sums, int64_t row, int column)
      : first(sums.dq + row * sums.pitch + column * kRows) {}

  // Each lane stores its four elements, or adds them, without waiting. Subnormal terms and sums become zeros: so the
  // GPU adds to global memory.
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

  // Reads a row of the upper half, and the one 8 below it.
  __device__ void read(int row, float (&upper)[kColumns], float (&lower)[kColumns]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#if __CUDA_ARCH__ >= 900  // four elements of lane i of the row
      const float4 four = *reinterpret_cast<const float4*>(first + row * 16 + i * 4);
      upper[2 * i] = four.x, upper[2 * i + 1] = four.y, lower[2 * i] = four.z, lower[2 * i + 1] = four.w;
#else  // element i of the row's four lanes
      const float4 four = *reinterpret_cast<const float4*>(first + i * 32 + row * 4);
      float (&half)[kColumns] = i < 2 ? upper : lower;
      half[i % 2] = four.x, half[2 + i % 2] = four.y, half[4 + i % 2] = four.z, half[6 + i % 2] = four.w;
#endif
    }
  }

  float* first;

 private:
  // Where a lane's elements begin in the fragment i fragments further right.
  __device__ float* lanes(int i) const {
#if __CUDA_ARCH__ >= 900
    return first + i * kSize + threadIdx.x % 32 * 4;
#else
    return first + i * kSize + threadIdx.x % 32;
#endif
  }
};

}  // namespace fusedops::cuda
