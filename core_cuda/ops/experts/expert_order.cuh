// Few slots sorted by one block, which lists the tiles of the groups as well. Other blocks load what the next product
// reads first to L2.
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

// The lines of each expert's matrix, or the beginnings of its lines, that the first tiles of a product read.
class FirstLines {
 public:
  // Nothing: no blocks.
  FirstLines() = default;

  // Sorting, the launch of the product and its search for rows leave memory idle for 6 us, in which L2 can load this
  // many bytes.
  static constexpr int64_t kMaxBytes = 18 << 20;

  // Tiles of 128 columns: one for each multiprocessor.
  FirstLines(const GroupedMatmul& product, const ExpertIndex& index, int multiprocessors) {
    const int64_t size = int64_t(size_of(product.dtype)), columns = int64_t(multiprocessors) * 128;
    const auto& b = product.b;
    if (product.n <= 0 || product.n > columns) return;
    const int64_t experts = std::min({index.slots, index.experts, ceil_div(columns, product.n)});
    if (experts <= 0) return;
    const int64_t depth = std::min(kMaxBytes / (experts * product.n * size), product.k) / 64 * 64;
    const int64_t lines = b.transposed ? product.n : depth, bytes = (b.transposed ? depth : product.n) * size;
    matrices_ = static_cast<const char*>(b.data);
    matrix_stride_ = b.batch_stride * size, line_stride_ = b.stride * size;
    if ((reinterpret_cast<uintptr_t>(matrices_) | matrix_stride_ | line_stride_ | bytes) % 16 != 0) return;
    experts_ = int(experts), lines_ = int(lines), bytes_ = uint32_t(bytes);
    blocks_ = experts_ * lines_ == 0 || bytes == 0 ? 0 : multiprocessors;
  }

  int blocks() const { return blocks_; }

  // Called by the blocks [first, first + blocks()), with memory for a bit of each expert. The experts that have slots
  // are found anew, since the list is not there yet: this one begins when the indices are complete. L2 is where all
  // writes become visible, so that a prefetch needs no order, not even behind a write of the weights.
  __device__ void prefetch(const ExpertIndex& index, int first, unsigned* memory) const {
    const int words = int(ceil_div(index.experts, int64_t(32)));
    for (int i = threadIdx.x; i < words; i += blockDim.x) memory[i] = 0;
    __syncthreads();
    for (int64_t slot = threadIdx.x; slot < index.slots; slot += blockDim.x) {
      const int expert = index.expert(slot);
      if (expert >= 0) atomicOr(&memory[expert / 32], 1u << expert % 32);
    }
    __syncthreads();
    if (threadIdx.x >= kPrefetchThreads) return;
    const int count = experts_ * lines_;
    for (int i = (int(blockIdx.x) - first) * kPrefetchThreads + threadIdx.x; i < count;
         i += blocks_ * kPrefetchThreads) {
      const int expert = find(memory, words, i / lines_);
      if (expert < 0) return;
      prefetch_line(matrices_ + expert * matrix_stride_ + i % lines_ * line_stride_);
    }
  }

 private:
  static constexpr int kPrefetchThreads = 128;  // of a block

  // The expert with this many before it that have slots; -1: none.
  static __device__ int find(const unsigned* memory, int words, int before) {
    for (int i = 0; i < words; ++i) {
      unsigned bits = memory[i];
      const int of_word = __popc(bits);
      if (before >= of_word) {
        before -= of_word;
        continue;
      }
      for (; before > 0; --before) bits &= bits - 1;
      return i * 32 + __ffs(bits) - 1;
    }
    return -1;
  }

  __device__ void prefetch_line(const char* line) const {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(line), "r"(bytes_) : "memory");
#endif
  }

  const char* matrices_ = nullptr;
  int64_t matrix_stride_ = 0, line_stride_ = 0;  // in bytes
  int experts_ = 0, lines_ = 0, blocks_ = 0;
  uint32_t bytes_ = 0;  // of a line
};

}  // namespace fusedops::cuda
