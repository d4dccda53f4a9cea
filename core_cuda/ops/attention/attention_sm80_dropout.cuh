// Dropout of scores in fragments of mma.m16n8k16.
#pragma once

#include "ops/attention/attention_dropout.cuh"
#include "ops/attention/attention_fragments.cuh"

namespace fusedops::cuda {

// Applies dropout to a warp's rows. `first`: position of the first probability of its first row. Each lane of a quad
// draws for a quarter of the columns of a row.
template <int kRowTiles, int kColumnTiles>
__device__ void drop(const DroppedProbabilities& dropout, int64_t first, int64_t row_stride,
                     Fragments<kRowTiles, kColumnTiles>& p) {
  constexpr int kTiles = kColumnTiles / 4, kColumns = 8 * kTiles;  // per lane
#pragma unroll
  for (int row = 0; row < 2 * kRowTiles; ++row) {
    const int in_warp = row / 2 * 16 + fragment_row(row % 2 * 2);
    const uint32_t drawn = kept_bits<kColumns>(dropout, first + in_warp * row_stride + threadIdx.x % 4 * kColumns);
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      const uint32_t kept = __shfl_sync(~0u, drawn, lane, 4) >> fragment_column(0);
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i)
        if (!(kept >> (i / 2 * 8 + i % 2) & 1)) p[row / 2][lane * kTiles + i / 2][row % 2 * 2 + i % 2] = 0;
    }
  }
}

// The same for transposed scores [keys, queries]: bits of a lane's kColumnTiles x kRowTiles x 4 scores, in this order.
// `first`: position of the probability of the first query and the warp's first key. A lane draws for whole queries.
template <int kRowTiles, int kColumnTiles>
__device__ uint32_t kept_of_keys(const DroppedProbabilities& dropout, int64_t first, int64_t query_stride) {
  constexpr int kKeys = 16 * kRowTiles, kQueries = 8 * kColumnTiles, kAtOnce = kQueries < 32 ? kQueries : 32;
  static_assert(kQueries / kAtOnce * kKeys <= 32);
  uint32_t drawn = 0;
#pragma unroll
  for (int query = 0; query < kQueries; query += kAtOnce) {
    const int own = query + threadIdx.x % kAtOnce;
    drawn |= kept_bits<kKeys>(dropout, first + own * query_stride) << (query / kAtOnce * kKeys);
  }
  uint32_t kept = 0;
#pragma unroll
  for (int j = 0; j < kAtOnce / 8; ++j)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const uint32_t of_query = __shfl_sync(~0u, drawn, j * 8 + fragment_column(side)) >> fragment_row(0);
#pragma unroll
      for (int query = 0; query < kQueries; query += kAtOnce)
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t bit = of_query >> (query / kAtOnce * kKeys + i * 16 + half * 8) & 1;
            kept |= bit << (((query / 8 + j) * kRowTiles + i) * 4 + half * 2 + side);
          }
    }
  return kept;
}

}  // namespace fusedops::cuda
