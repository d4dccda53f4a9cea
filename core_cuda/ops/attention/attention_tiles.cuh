// Work tiles of the simt and sm80 kernels, and copies of rows of heads between global and shared memory.
#pragma once

#include "core/cuda/async_copy.cuh"
#include "ops/attention/attention.h"

namespace fusedops::cuda {

// The number of parts of a row, of which each but the last has `size` columns.
FUSEDOPS_HD int parts_of(int columns, int size) { return (columns + size - 1) / size; }

inline int64_t tiles_of(int64_t size, int tile) { return (size + tile - 1) / tile; }

// A tile of one sequence.
struct SequenceTile {
  int64_t sequence;  // -1: none
  int tile;
};

enum class Side { queries, keys };

// Upper bound of the number of tiles of all sequences.
inline int64_t most_tiles(const Attention& call, Side side, int size) {
  const int positions = side == Side::queries ? call.queries : call.keys;
  const int packed = side == Side::queries ? call.packed_queries : call.packed_keys;
  return call.offsets_q ? packed / size + call.sequences : call.sequences * tiles_of(positions, size);
}

// Tile `index` of packed sequences, each divided into tiles of `size`. Called by whole warps.
__device__ inline SequenceTile find_packed_tile(const Attention& call, Side side, int64_t index, int size) {
  constexpr unsigned kAll = ~0u;
  const int lane = threadIdx.x % 32;
  for (int64_t first = 0; first < call.sequences; first += 32) {
    int tiles = 0;
    if (first + lane < call.sequences) {
      const Sequence sequence = call.sequence(first + lane);
      tiles = ((side == Side::queries ? sequence.queries : sequence.keys) + size - 1) / size;
    }
    int through = tiles;  // inclusive prefix sum over lanes
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int before = __shfl_up_sync(kAll, through, distance);
      if (lane >= distance) through += before;
    }
    const unsigned behind = __ballot_sync(kAll, index < through);
    if (behind) {
      const int found = __ffs(behind) - 1;
      return {first + found, static_cast<int>(index) - __shfl_sync(kAll, through - tiles, found)};
    }
    index -= __shfl_sync(kAll, through, 31);
  }
  return {-1, 0};
}

// A tile of one head of one sequence.
struct HeadTile {
  int64_t sequence;  // -1: there is none
  int head, tile;
};

// The tile of block `index` of `blocks`. Neighbouring blocks have tiles of the same head, from the last to the first:
// causal queries see the most keys in the last.
__device__ inline HeadTile find_tile(const Attention& call, Side side, int64_t index, int64_t blocks, int size) {
  const int heads = side == Side::queries ? call.heads : call.key_heads;
  if (call.offsets_q) {
    const int64_t tiles = blocks / heads;
    const SequenceTile found = find_packed_tile(call, side, index % tiles, size);
    return {found.sequence, static_cast<int>(index / tiles), found.tile};
  }
  const int positions = side == Side::queries ? call.queries : call.keys, tiles = (positions + size - 1) / size;
  const int64_t row = index / tiles;
  return {row / heads, static_cast<int>(row % heads), tiles - 1 - static_cast<int>(index % tiles)};
}

// True if rows can be accessed in 16-byte vectors.
template <class T>
bool are_aligned(const HeadRows& rows) {
  const uint64_t strides = static_cast<uint64_t>(rows.sequence | rows.position | rows.head) * sizeof(T);
  return (reinterpret_cast<uintptr_t>(rows.data) | strides) % 16 == 0;
}

// Pitch of rows in shared memory. The pad avoids bank conflicts.
template <int kD>
inline constexpr int kPitchOf = kD + 8;

// Copies `count` elements of a pack of 8; the rest becomes zero.
template <class T>
__device__ void copy_pack(T* to, const T* from, int count, bool aligned) {
  if (aligned) {
    copy_async<16>(to, from, count * int(sizeof(T)));
  } else {
#pragma unroll 1
    for (int i = 0; i < 8; ++i) to[i] = i < count ? from[i] : T{};
  }
}

// Copies rows of a head, with at most kD columns, into tiles of shared memory, by all threads of a block or a warp. It
// advances a pointer by additions: the compiler would keep products of lines and strides in registers.
template <class T, int kD, int kThreads>
class RowCopy {
 public:
  static constexpr int kPerRow = kD / 8, kLines = kThreads / kPerRow;  // packs of 8 per row, lines per pass

  __device__ RowCopy(const T* first_row, int64_t stride) : from_(first_row + line() * stride + column()) {}

  __device__ void advance(int64_t elements) { from_ += elements; }

  // Starts to copy `rows` rows of `width` elements; the rest of kRows rows becomes zero.
  template <int kRows>
  __device__ void start(T* to, int64_t stride, int rows, int width, bool aligned) const {
    static_assert(kThreads % kPerRow == 0 && kRows % kLines == 0);
    const T* from = from_;
    to += line() * kPitchOf<kD> + column();
    const int exist = min(max(width - column(), 0), 8);
    if (aligned) {
#pragma unroll
      for (int i = 0; i < kRows / kLines; ++i) {
        copy_pack(to, from, line() + i * kLines < rows ? exist : 0, true);
        to += kLines * kPitchOf<kD>;
        from += kLines * stride;
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kRows; i += kLines) {
        copy_pack(to, from, line() + i < rows ? exist : 0, false);
        to += kLines * kPitchOf<kD>;
        from += kLines * stride;
      }
    }
  }

  // Starts to copy kRows aligned rows of kD elements.
  template <int kRows>
  __device__ void start_whole(T* to, int64_t stride) const {
    static_assert(kThreads % kPerRow == 0 && kRows % kLines == 0);
    const T* from = from_;
    to += line() * kPitchOf<kD> + column();
#pragma unroll
    for (int i = 0; i < kRows / kLines; ++i) {
      copy_async_whole(to, from);
      to += kLines * kPitchOf<kD>;
      from += kLines * stride;
    }
  }

 private:
  static __device__ int line() { return threadIdx.x % kThreads / kPerRow; }
  static __device__ int column() { return threadIdx.x % kPerRow * 8; }

  const T* from_;
};

// Stores `rows` rows of `width` elements of a tile of width kD. Called by a warp after its lanes have written the tile.
template <int kRows, int kD, class T>
__device__ void store_rows(const T* tile, T* to, int64_t stride, int rows, int width, bool aligned) {
  constexpr int kPerRow = kD / 8;
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < kRows * kPerRow; i += 32) {
    const int row = i / kPerRow, column = i % kPerRow * 8;
    if (row >= rows) continue;
    const T* const from = tile + row * kPitchOf<kD> + column;
    T* const pack = to + row * stride + column;
    if (aligned && column + 8 <= width) {
      *reinterpret_cast<int4*>(pack) = *reinterpret_cast<const int4*>(from);
    } else {
      for (int j = 0; j < 8 && column + j < width; ++j) pack[j] = from[j];
    }
  }
}

}  // namespace fusedops::cuda
