// Epilogues of gemm_sm90.cuh with PingPongTiles that store results directly from registers.
#pragma once

#include "core/cuda/tensor_core.cuh"
#include "ops/products/gemm_sm90.cuh"

namespace fusedops::cuda {

// Position of a thread's sums in a tile. Of each 8 columns a thread holds two adjacent ones, in one row and in the row
// 8 below; and the same 64 rows further down.
struct SumPlace {
  static constexpr int kGroups = 128 / 8, kRows = 4;
  using Sums = float[kRows / 2][4 * kGroups];
  using Row = float[2 * kGroups];

  // Copies the thread's row i, so that a loop over the rows need not be unrolled: a quarter of the code.
  static __forceinline__ __device__ void copy_row(const Sums& sums, int i, Row& row) {
#pragma unroll
    for (int j = 0; j < 2 * kGroups; ++j) {
      const int at = j / 2 * 4 + j % 2;
      const float upper = i % 2 ? sums[0][at + 2] : sums[0][at], lower = i % 2 ? sums[1][at + 2] : sums[1][at];
      row[j] = i / 2 ? lower : upper;
    }
  }
  static __device__ constexpr int row(int i) { return i / 2 * 64 + i % 2 * 8; }

  static __device__ int first_row() { return sm90::Fragment(threadIdx.x % sm90::kWarpgroup).first_row; }
};

// Transposes the 4 x 4 words of a quad: lane i gives its word j to lane j, as word i.
__device__ inline void transpose_in_quad(uint32_t (&words)[4]) {
  const int lane = threadIdx.x % 4;
  const auto exchange = [](uint32_t& low, uint32_t& high, bool is_high, int distance) {
    const uint32_t got = __shfl_xor_sync(0xffffffff, is_high ? low : high, distance);
    (is_high ? low : high) = got;
  };
  exchange(words[0], words[2], lane & 2, 2);
  exchange(words[1], words[3], lane & 2, 2);
  exchange(words[0], words[1], lane & 1, 1);
  exchange(words[2], words[3], lane & 1, 1);
}

// Gives each lane of a quad 8 adjacent rounded elements of a row, from two of each 8 of the 32 columns that the quad
// holds. The quad then stores 64 bytes of the row in one access.
template <class T>
__device__ uint4 rounded_in_quad(const float (&values)[8]) {
  uint32_t words[4];
#pragma unroll
  for (int group = 0; group < 4; ++group) words[group] = rounded_pair<T>(values[group * 2], values[group * 2 + 1]);
  transpose_in_quad(words);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace fusedops::cuda
