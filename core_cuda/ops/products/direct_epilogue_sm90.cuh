// Epilogues of gemm_sm90.cuh that write their results from registers, with tiles of PingPongTiles.
#pragma once

#include "core/cuda/tensor_core.cuh"
#include "ops/products/gemm_sm90.cuh"

namespace fusedops::cuda {

// The place of a thread's sums in a tile. Of each 8 columns, a thread holds the sums of two neighbours, in one row and
// in that 8 below; and the same 64 rows further down.
struct SumPlace {
  static constexpr int kGroups = 128 / 8, kRows = 4;
  using Sums = float[kRows / 2][4 * kGroups];
  using Row = float[2 * kGroups];

  // The thread's row i, as a copy: a loop over the rows that is not unrolled has a quarter of the code.
  static __forceinline__ __device__ void copy_row(const Sums& sums, int i, Row& row) {
#pragma unroll
    for (int j = 0; j < 2 * kGroups; ++j) {
      const int at = j / 2 * 4 + j % 2;
      const float upper = i % 2 ? sums[0][at + 2] : sums[0][at], lower = i % 2 ? sums[1][at + 2] : sums[1][at];
      row[j] = i / 2 ? lower : upper;
    }
  }
  static __device__ constexpr int row(int i) { return i / 2 * 64 + i % 2 * 8; }

  // The thread's first row in the tile.
  static __device__ int first_row() { return sm90::Fragment(threadIdx.x % sm90::kWarpgroup).first_row; }
};

// The transpose of the 4 x 4 words that the four lanes of a quad hold: lane i gives its word j to lane j, as word i.
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

// Gives each lane of a quad 8 neighbouring elements of a row, rounded, from two of each 8 of 32 columns that it holds.
// Written in one access, they are 64 bytes of the row together.
template <class T>
__device__ uint4 rounded_in_quad(const float (&values)[8]) {
  uint32_t words[4];
#pragma unroll
  for (int group = 0; group < 4; ++group) words[group] = rounded_pair<T>(values[group * 2], values[group * 2 + 1]);
  transpose_in_quad(words);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace fusedops::cuda
