// Few slots sorted by one block, which lists the tiles of the groups as well.
#pragma once

#include <algorithm>

#include "core/cuda/divisor.cuh"
#include "ops/experts/experts.h"
#include "ops/experts/group_tiles.h"

namespace fusedops::cuda {

// Bins are the experts, and one for the slots without an expert. Slots are sorted in chunks of a warp.
struct FewSlots {
  ExpertOrder order;
  GroupTiles tiles;
  Divisor per_token;
  int slots, bins, chunks;

  // True if the slots are few, and sort() needs less shared memory than any block may have.
  static bool accepts(const ExpertOrder& order) {
    constexpr int64_t kMaxSlots = 1024, kMaxIntegers = 11 << 10;
    const int64_t slots = order.index.slots, bins = order.index.experts + 1;
    return slots <= kMaxSlots && (ceil_div(slots, 32) + 1) * bins + slots + 32 <= kMaxIntegers;
  }

  explicit FewSlots(const ExpertOrder& order)
      : order(order),
        tiles(order.groups()),
        per_token(std::max<int64_t>(order.per_token, 1)),
        slots(int(order.index.slots)),
        bins(int(order.index.experts) + 1),
        chunks(int(ceil_div(slots, 32))) {}

  // Shared memory of sort(): counts of the chunks' bins, first rows of the bins, and expert and place of each slot.
  int shared_bytes() const { return (chunks * bins + bins + chunks * 32) * int(sizeof(int)); }

  // Called by a block of kThreads, with shared_bytes() bytes. Results are complete for the block after a barrier.
  template <int kThreads>
  __device__ void sort(int* memory) const {
    constexpr unsigned kAll = 0xffffffff;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int* const counts = memory;
    int* const first_rows = counts + chunks * bins;
    int* const found = first_rows + bins;  // the bin, and the slot's number among equal ones of its chunk
    for (int i = threadIdx.x; i < chunks * bins; i += kThreads) counts[i] = 0;
    __syncthreads();
    for (int chunk = warp; chunk < chunks; chunk += kThreads / 32) {
      const int slot = chunk * 32 + lane;
      int bin = bins;
      if (slot < slots) {
        bin = order.index.expert(slot);
        if (bin < 0) bin = bins - 1;
      }
      const unsigned equal = __match_any_sync(kAll, bin);
      const int before = __popc(equal & ((1u << lane) - 1));
      found[slot] = bin | before << 16;
      if (before == 0 && bin < bins) counts[chunk * bins + bin] = __popc(equal);
    }
    __syncthreads();
    // Counts of a bin become those of the chunks before.
    for (int bin = threadIdx.x; bin < bins; bin += kThreads) {
      int sum = 0;
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const int count = counts[chunk * bins + bin];
        counts[chunk * bins + bin] = sum;
        sum += count;
      }
      first_rows[bin] = sum;
    }
    __syncthreads();
    if (warp == 0) {
      int before = 0;  // rows, and in the upper half tiles
      for (int first = 0; first < bins; first += 32) {
        const int bin = first + lane, rows = bin < bins ? first_rows[bin] : 0;
        const int of_bin = rows | int(ceil_div(rows, kGroupTileRows)) << 16;
        int sum = of_bin;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
          const int below = __shfl_up_sync(kAll, sum, distance);
          if (lane >= distance) sum += below;
        }
        const int start = before + sum - of_bin, row = start & 0xffff;
        before += __shfl_sync(kAll, sum, 31);
        if (bin >= bins) continue;
        first_rows[bin] = row;
        order.offsets[bin] = tiles.bounds[bin] = row;
        GroupTile* tile = tiles.tiles + (start >> 16);
        for (int at = row; at < row + rows; at += kGroupTileRows)
          *tile++ = {at, min(at + kGroupTileRows, row + rows), bin};
      }
      if (lane == 0) *tiles.count(bins - 1) = before >> 16;
    }
    __syncthreads();
    for (int slot = threadIdx.x; slot < slots; slot += kThreads) {
      const int bin = found[slot] & 0xffff,
                row = first_rows[bin] + counts[slot / 32 * bins + bin] + (found[slot] >> 16);
      order.order[row] = slot;
      order.tokens[row] = int(per_token.divide(slot).quotient);
      order.rows[slot] = row;
    }
  }
};

}  // namespace fusedops::cuda
