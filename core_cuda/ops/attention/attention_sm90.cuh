// What the attention kernels for compute capability 9.x share: tiles in shared memory that the bulk tensor copy engine
// (TMA) fills and the warpgroup products (wgmma) read, and the order in which blocks take their tasks.
#pragma once

#include "core/common/exp.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/sm90/ring.cuh"
#include "core/cuda/sm90/swizzled_tile.cuh"
#include "core/cuda/sm90/tma.cuh"
#include "core/cuda/tensor_core.cuh"
#include "cutlass/arch/reg_reconfig.h"
#include "cutlass/fast_math.h"
#include "ops/attention/attention_paths.h"

namespace fusedops::cuda::sm90 {

// A product is a score, without its scale: times this factor it is an exponent of 2.
inline float factor_of(const Attention& call) { return static_cast<float>(call.scale * kLog2E); }

// Rows of `kFeatures` features. Panels of 64, or of 32 where two warpgroups have 96 features each.
template <int kRows, int kFeatures>
using RowTile = SwizzledTile<kRows, kFeatures, kFeatures == 192 ? 32 : 64>;

// A tensor of heads for TMA, as [feature, position, head, sequence], and the boxes that fill a tile of kRows rows.
template <class Tile>
Status describe_rows(const HeadRows& rows, int positions, int features, int heads, int64_t sequences, int tile_rows,
                     CUtensorMap* map) {
  // TMA checks the stride of a single element, too.
  const auto stride = [=](int64_t stride, int64_t size) {
    return static_cast<cuuint64_t>(size == 1 ? features : stride) * sizeof(uint16_t);
  };
  const Boxes<4> boxes = {
      rows.data,
      {cuuint64_t(features), cuuint64_t(positions), cuuint64_t(heads), cuuint64_t(sequences)},
      {stride(rows.position, positions), stride(rows.head, heads), stride(rows.sequence, sequences)},
      {Tile::kPanel, cuuint32_t(tile_rows), 1, 1}};
  return boxes.describe(map);
}

// Starts the copy of the tile whose first row is at `position` of a head: the work of one thread.
template <class Tile, class T>
__forceinline__ __device__ void load_tile(const CUtensorMap& map, uint64_t* barrier, int position, int head,
                                          int sequence, T* tile) {
#pragma unroll
  for (int panel = 0; panel < Tile::kPanels; ++panel)
    cute::SM90_TMA_LOAD_4D::copy(&map, barrier, kCacheHint, tile + panel * (Tile::kSize / Tile::kPanels),
                                 panel * Tile::kPanel, position, head, sequence);
}

// A row's values are with four neighbouring threads.
template <class Op>
__forceinline__ __device__ float over_row(float value, Op&& op) {
  value = op(value, __shfl_xor_sync(0xffffffff, value, 1));
  return op(value, __shfl_xor_sync(0xffffffff, value, 2));
}

// An accumulator, rounded: two neighbouring columns in a word. It is also the left operand of a product over them.
template <class T, int kValues>
__forceinline__ __device__ void round_to(uint32_t (&words)[kValues / 2], const float (&values)[kValues]) {
#pragma unroll
  for (int i = 0; i < kValues / 2; ++i) words[i] = rounded_pair<T>(values[2 * i], values[2 * i + 1]);
}

// Tiles of positions, in sequences that may be packed. The host does not know the offsets of packed ones: tile i of
// sequence b stands at offsets[b] / kSize + b + i, which leaves room for each sequence's last tile.
template <int kSize>
struct Slots {
  const int32_t* offsets;  // null: not packed
  int tiles;               // in a sequence, or in all room there is
  int64_t sequences;

  static Slots of(const Attention& call, const int32_t* offsets, int positions, int packed) {
    if (!offsets) return {nullptr, (positions + kSize - 1) / kSize, call.sequences};
    return {offsets, packed / kSize + static_cast<int>(call.sequences), call.sequences};
  }
  static Slots of_queries(const Attention& call) { return of(call, call.offsets_q, call.queries, call.packed_queries); }
  static Slots of_keys(const Attention& call) { return of(call, call.offsets_k, call.keys, call.packed_keys); }

  // For one head.
  __host__ __device__ int64_t count() const { return offsets ? tiles : tiles * sequences; }

  __device__ int64_t slot(int64_t b, int tile) const {
    return offsets ? offsets[b] / kSize + b + tile : b * tiles + tile;
  }

  struct Tile {
    int sequence, tile;  // a tile beyond the sequence's end has no positions
  };

  // The tile of a slot. Of packed ones it is in the last sequence that begins at or before it. A slot before all of
  // them, of positions that no sequence has, gets a tile without positions.
  __device__ Tile at(int64_t slot) const {
    if (!offsets) return {static_cast<int>(slot / tiles), static_cast<int>(slot % tiles)};
    int begin = 0, end = static_cast<int>(sequences);  // it is in there
    while (end - begin > 1) {
      const int middle = (begin + end) / 2;
      (offsets[middle] / kSize + middle <= slot ? begin : end) = middle;
    }
    const int tile = static_cast<int>(slot - this->slot(begin, 0));
    return {begin, tile < 0 ? tiles : tile};
  }
};

// A task: a tile of one head of one sequence.
struct WorkTile {
  int sequence, head, tile;
};

// In which order the tasks are taken. Heads are taken in sections whose rows stay in the L2 cache. Within a section
// come the first tiles of all its heads, then the second ones, and so on; with `last_first` the last ones come first.
// With `to_and_fro` every other section goes the other way, and the last section goes as `last_first` says: where
// attention is causal, the tasks before and behind a section's end then have about as much to do. Divisions are
// multiplications, since all warps wait for them.
template <int kSize>
class TileScheduler {
 public:
  static TileScheduler of(const Slots<kSize>& slots, int heads, int64_t bytes_per_head, int min_pairs, bool is_reversed,
                          bool is_serpentine) {
    constexpr int64_t kCached = 24 << 20;  // of an L2 cache of 50 MB
    const auto pairs = static_cast<int>(slots.offsets ? heads : slots.sequences * heads);
    const int64_t cached = std::max<int64_t>(kCached / std::max<int64_t>(bytes_per_head, 1), min_pairs);
    const auto per_section = static_cast<int>(std::clamp<int64_t>(cached, 1, pairs));
    TileScheduler scheduler;
    scheduler.slots_ = slots, scheduler.pairs_ = pairs, scheduler.per_section_ = per_section,
    scheduler.is_reversed_ = is_reversed;
    scheduler.is_serpentine_ = is_serpentine, scheduler.full_sections_ = pairs / per_section;
    scheduler.last_section_ = (pairs - 1) / per_section;
    scheduler.by_section_ = cutlass::FastDivmod(per_section * slots.tiles);
    scheduler.by_pairs_ = cutlass::FastDivmod(per_section);
    scheduler.by_last_pairs_ = cutlass::FastDivmod(pairs % per_section ? pairs % per_section : per_section);
    scheduler.by_heads_ = cutlass::FastDivmod(heads);
    return scheduler;
  }

  __host__ __device__ int work_tiles() const { return pairs_ * slots_.tiles; }

  __device__ WorkTile work_tile(int index) const {
    int section, within, place, pair, b, head;
    by_section_(section, within, index);
    (section == full_sections_ ? by_last_pairs_ : by_pairs_)(place, pair, within);
    by_heads_(b, head, section * per_section_ + pair);
    const bool is_flipped = is_serpentine_ && (last_section_ - section) % 2;
    const int tile = is_reversed_ != is_flipped ? slots_.tiles - 1 - place : place;
    if (!slots_.offsets) return {b, head, tile};
    const auto found = slots_.at(tile);
    return {found.sequence, head, found.tile};
  }

 private:
  Slots<kSize> slots_;
  cutlass::FastDivmod by_section_, by_pairs_, by_last_pairs_, by_heads_;
  int pairs_;  // of sequence and head
  int per_section_, full_sections_, last_section_;
  bool is_reversed_, is_serpentine_;
};

// A rounded accumulator to a warp's 16 rows of a tile in shared memory, from `column` on. `rows`: the first of them, in
// the tile's first panel.
template <class Tile, class T, int kWords>
__forceinline__ __device__ void store_fragment(T* rows, int column, const uint32_t (&words)[kWords]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kWords; i += 4) {  // 16 columns
    auto* const line = rows + Tile::at(lane % 16, column + 4 * i + lane / 16 * 8);
    cute::SM90_U32x4_STSM_N::copy(words[i], words[i + 1], words[i + 2], words[i + 3],
                                  *reinterpret_cast<cute::uint128_t*>(line));
  }
}

// The rows of a warp's accumulator, times a factor each, to global memory. They pass through a tile in shared memory,
// from which neighbouring threads take neighbouring 16 bytes; a warp's 16 rows of it are its own. `rows` and `columns`
// of the tile exist, and row(i) points to the first column of row i.
template <class Tile, int kValues, class T, class Row>
__forceinline__ __device__ void store_rows(int first_row, int first_column, const float (&factors)[2],
                                           float (&values)[kValues], T* tile, int rows, int columns, Row&& row) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) values[i] *= factors[i / 2 % 2];
  uint32_t words[kValues / 2];
  round_to<T>(words, values);
  T* const own_rows = tile + first_row * Tile::kPanel;
  __syncwarp();
  store_fragment<Tile>(own_rows, first_column, words);
  __syncwarp();
  constexpr int kVectors = 2 * kValues / 8, kRows = 32 / kVectors;  // of a row; that a warp takes at a time
  const int lane = threadIdx.x % 32, column = first_column + lane % kVectors * 8;
  if (lane >= kRows * kVectors || column >= columns) return;
#pragma unroll
  for (int i = 0; i < 16 / kRows; ++i) {
    const int at = i * kRows + lane / kVectors;
    if (first_row + at < rows)
      *reinterpret_cast<uint4*>(row(first_row + at) + column) =
          *reinterpret_cast<const uint4*>(own_rows + Tile::at(at, column));
  }
}

// Rows of a tile behind its last kept key become zeros: TMA may have copied those of another sequence, and 0 * NaN is
// NaN.
template <class Tile, class T>
__device__ void clear_rows(T* tile, int first, int thread, int threads) {
  constexpr int kVectors = Tile::kPanels * Tile::kPanel / 8, kRows = Tile::kSize / (kVectors * 8);
  for (int i = first * kVectors + thread; i < kRows * kVectors; i += threads)
    *reinterpret_cast<uint4*>(tile + Tile::at(i / kVectors, i % kVectors * 8)) = {};
  cutlass::arch::fence_view_async_shared();
}

}  // namespace fusedops::cuda::sm90
