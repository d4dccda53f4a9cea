// Which probabilities dropout keeps, as bits: nothing but the seed is stored, and the backward draws them again.
//
// Limit: the integer multiplications of Philox, five for each probability, which run at half the rate of others. So
// every word is drawn once: neighbouring keys of a query are one lane's, and their bits go to the lanes that have the
// probabilities.
#pragma once

#include "core/common/philox.h"
#include "ops/attention/attention_fragments.cuh"

namespace fusedops::cuda {

using DroppedProbabilities = Dropout::Function<float>;

// A bit for each of kCount neighbouring probabilities: whether it is kept. In a loop, which takes fewer registers.
template <int kCount>
__device__ uint32_t kept_bits(const DroppedProbabilities& dropout, int64_t first) {
  constexpr int kAtOnce = 2;  // counters, so that one's multiplications run while the other's are on their way
  static_assert(kCount % (4 * kAtOnce) == 0 && kCount <= 32);
  const auto draw = [&](auto counters, int64_t counter) {
    const Philox<counters> philox(counter, dropout.seed.offset, dropout.seed.key);
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < counters; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k) bits |= uint32_t(philox.words[k][j] >= dropout.least) << (4 * j + k);
    return bits;
  };
  uint64_t bits = 0;
#pragma unroll 1
  for (int i = 0; i < kCount; i += 4 * kAtOnce)
    bits |= uint64_t(draw(std::integral_constant<int, kAtOnce>(), (first + i) / 4)) << i;
  const int before = first % 4;  // words of the first counter that belong to other probabilities
  if (before) bits |= uint64_t(draw(std::integral_constant<int, 1>(), (first + kCount) / 4)) << kCount;
  return uint32_t(bits >> before) & (~0u >> (32 - kCount));
}

// Drops probabilities of a warp's rows. `first` is the place of its first row's first one; the lanes that share a row
// draw for a quarter of its columns each.
template <int kRowTiles, int kColumnTiles>
__device__ void drop(const DroppedProbabilities& dropout, int64_t first, int64_t row_stride,
                     Fragments<kRowTiles, kColumnTiles>& p) {
  constexpr int kTiles = kColumnTiles / 4, kColumns = 8 * kTiles;  // of a lane
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

// The same for scores whose rows are keys, and whose columns queries: a bit for each of a lane's kColumnTiles x
// kRowTiles x 4, in this order. `first` is the place of the first query's probability of the warp's first key. A lane
// draws for whole queries.
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
