// Shared parts of the attention kernels for compute capability 9.x: tiles in shared memory for TMA and wgmma, the tile
// scheduler, and stores of accumulators.
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
#include "ops/attention/attention_kernels.h"
#include "ops/attention/attention_scores.h"

namespace fusedops::cuda::sm90 {

// Products q k times this factor are exponents of 2. These kernels keep products in place of scores.
inline float factor_of(const Attention& call) { return static_cast<float>(call.scale * kLog2E); }

// The terms that a kernel adds to scores. Those for a bias are kernels for masks and dropout, too, unless TMA loads it
// in tiles.
enum class Terms { none, alibi, bias, bias_tiles };
constexpr bool has_bias(Terms terms) { return terms == Terms::bias || terms == Terms::bias_tiles; }

// The bias of a head of a sequence.
template <class T>
struct HeadBias {
  HeadBias() = default;
  __device__ HeadBias(const Attention& call, float factor, int64_t b, int head)
      : place(call.bias_place(b, head)),
        unit(static_cast<float>(kLog2E) / factor),
        lowest(-0.5f * std::numeric_limits<float>::max() / fmaxf(unit, static_cast<float>(kLog2E))) {}

  // The bias of two adjacent keys; 0 past the last key. `is_paired`: they can be loaded at once.
  __device__ float2 of_keys(const Attention& call, int query, int key, bool is_paired) const {
    const int64_t row = place + query * call.bias_row;
    if (key >= call.keys) return {0, 0};
    if (is_paired) return call.bias.pair<T>(row + key);
    return {call.bias.at<T>(row, key), key + 1 < call.keys ? call.bias.at<T>(row, key + 1) : 0};
  }

  __device__ float at(const Attention& call, int query, int key) const {
    return key < call.keys ? call.bias.at<T>(place + query * call.bias_row, key) : 0;
  }

  // The sum of a product and a bias, in units of products. Minus infinity masks, and finite numbers stay finite.
  __device__ float add(float product, float bias) const {
    return bias == -INFINITY ? bias : product + (bias < lowest ? lowest : bias) * unit;
  }

  // Starts to bring the bias of 64 queries and kKeys keys into the L2 cache. Called by a warpgroup, one tile ahead.
  template <int kKeys>
  __device__ void prefetch(const Attention& call, const Sequence& sequence, int first_query, int first_key) const {
    const int thread = threadIdx.x % kWarpgroup, query = first_query + thread % 64;
    if (query >= sequence.queries || first_key < 0) return;
    const int per_line = call.bias.is_f32() ? 32 : 64, end = min(first_key + kKeys, call.keys);
#pragma unroll 1
    for (int key = first_key + thread / 64 * per_line; key < end; key += 2 * per_line)
      call.bias.prefetch<T>(place + query * call.bias_row, key);
  }

  int64_t place;
  float unit;    // of a score, in units of products
  float lowest;  // finite in units of products and of exponents
};

// The factor of distances in ALiBi of a head, in units of products; `factor` as above.
template <class T>
__device__ float alibi_slope(const Attention& call, float factor, int head) {
  return call.alibi.get<T>(head) * -static_cast<float>(kLog2E) / factor;
}

// Rows of `kFeatures` features. Panels of 64, or of 32 where two warpgroups have 96 features each.
template <int kRows, int kFeatures>
using RowTile = SwizzledTile<kRows, kFeatures, kFeatures == 192 ? 32 : 64>;

// TMA descriptor of a tensor [feature, position, head, sequence], with boxes of tile_rows positions.
template <class Tile>
Status describe_rows(const HeadRows& rows, int positions, int features, int heads, int64_t sequences, int tile_rows,
                     CUtensorMap* map) {
  // TMA checks the stride of a dimension of size 1, too.
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

// TMA descriptors of the inputs q, k, v and, in a backward, dy, with boxes of query_rows or key_rows positions.
template <class QueryTile, class KeyTile, class Maps>
Status describe_inputs(const Attention& call, int64_t sequences, int query_rows, int key_rows, Maps* maps) {
  const auto of_queries = [&](const HeadRows& rows, int features, CUtensorMap* map) {
    return describe_rows<QueryTile>(rows, call.queries, features, call.heads, sequences, query_rows, map);
  };
  const auto of_keys = [&](const HeadRows& rows, int features, CUtensorMap* map) {
    return describe_rows<KeyTile>(rows, call.keys, features, call.key_heads, sequences, key_rows, map);
  };
  FUSEDOPS_TRY(of_queries(call.q, call.dim, &maps->q));
  FUSEDOPS_TRY(of_keys(call.k, call.dim, &maps->k));
  FUSEDOPS_TRY(of_keys(call.v, call.dim_v, &maps->v));
  if constexpr (requires { maps->dy; })
    if (call.dy.data) return of_queries(call.dy, call.dim_v, &maps->dy);
  return {};
}

// Starts the copy of the tile that begins at `position` of a head. Called by one thread.
template <class Tile, class T>
__forceinline__ __device__ void load_tile(const CUtensorMap& map, uint64_t* barrier, int position, int head,
                                          int sequence, T* tile) {
#pragma unroll
  for (int panel = 0; panel < Tile::kPanels; ++panel)
    cute::SM90_TMA_LOAD_4D::copy(&map, barrier, kCacheHint, tile + panel * (Tile::kSize / Tile::kPanels),
                                 panel * Tile::kPanel, position, head, sequence);
}

// Reduces over a row, whose values are held by a quad of threads.
template <class Op>
__forceinline__ __device__ float over_row(float value, Op&& op) {
  value = op(value, __shfl_xor_sync(0xffffffff, value, 1));
  return op(value, __shfl_xor_sync(0xffffffff, value, 2));
}

// Rounds an accumulator to words of two adjacent columns, the layout of a left operand in registers.
template <class T, int kValues>
__forceinline__ __device__ void round_to(uint32_t (&words)[kValues / 2], const float (&values)[kValues]) {
#pragma unroll
  for (int i = 0; i < kValues / 2; ++i) words[i] = rounded_pair<T>(values[2 * i], values[2 * i + 1]);
}

// Slots of tiles of positions, in sequences that may be packed. The host does not know packed offsets. So tile i of
// sequence b has slot offsets[b] / kSize + b + i, which leaves room for the last tile of each sequence.
template <int kSize>
struct Slots {
  const int32_t* offsets;  // null: not packed
  int tiles;               // slots of a sequence, or of all packed sequences
  int64_t sequences;

  static Slots of(const Attention& call, const int32_t* offsets, int positions, int packed) {
    if (!offsets) return {nullptr, (positions + kSize - 1) / kSize, call.sequences};
    return {offsets, packed / kSize + static_cast<int>(call.sequences), call.sequences};
  }
  static Slots of_queries(const Attention& call) { return of(call, call.offsets_q, call.queries, call.packed_queries); }
  static Slots of_keys(const Attention& call) { return of(call, call.offsets_k, call.keys, call.packed_keys); }

  // The number of slots of one head.
  __host__ __device__ int64_t count() const { return offsets ? tiles : tiles * sequences; }

  __device__ int64_t slot(int64_t b, int tile) const {
    return offsets ? offsets[b] / kSize + b + tile : b * tiles + tile;
  }

  struct Tile {
    int sequence, tile;  // the tile may lie beyond the end of the sequence
  };

  // The tile of a slot. A packed slot belongs to the last sequence that begins at or before it. A slot before all
  // sequences gets a tile beyond the end.
  __device__ Tile at(int64_t slot) const {
    if (!offsets) return {static_cast<int>(slot / tiles), static_cast<int>(slot % tiles)};
    int begin = 0, end = static_cast<int>(sequences);  // binary search
    while (end - begin > 1) {
      const int middle = (begin + end) / 2;
      (offsets[middle] / kSize + middle <= slot ? begin : end) = middle;
    }
    const int tile = static_cast<int>(slot - this->slot(begin, 0));
    return {begin, tile < 0 ? tiles : tile};
  }
};

struct WorkTile {
  int sequence, head, tile;
};

// Maps an index to a work tile. Heads form sections whose rows stay in L2. A section takes the first tile of all its
// heads, then the second, and so on; from the last to the first if `is_reversed`. If `is_serpentine`, the direction
// alternates between sections, and `is_reversed` holds for the last one. Causal work tiles then have similar cost
// across a section's end. FastDivmod, since all warps wait for the divisions.
template <int kSize>
class TileScheduler {
 public:
  static constexpr int64_t kHalfOfL2 = 24 << 20;  // of 50 MB

  // `cached`: bytes of the heads of a section.
  static TileScheduler of(const Slots<kSize>& slots, int heads, int64_t bytes_per_head, int min_pairs, bool is_reversed,
                          bool is_serpentine, int64_t cached = kHalfOfL2) {
    const auto pairs = static_cast<int>(slots.offsets ? heads : slots.sequences * heads);
    TileScheduler scheduler;
    scheduler.slots_ = slots;
    if (pairs == 0) return scheduler;
    const int64_t fitting = std::max<int64_t>(cached / std::max<int64_t>(bytes_per_head, 1), min_pairs);
    const auto per_section = static_cast<int>(std::clamp<int64_t>(fitting, 1, pairs));
    scheduler.pairs_ = pairs, scheduler.per_section_ = per_section;
    scheduler.is_reversed_ = is_reversed, scheduler.is_serpentine_ = is_serpentine;
    scheduler.full_sections_ = pairs / per_section, scheduler.last_section_ = (pairs - 1) / per_section;
    scheduler.by_section_ = cutlass::FastDivmod(per_section * slots.tiles);
    scheduler.by_pairs_ = cutlass::FastDivmod(per_section);
    scheduler.by_last_pairs_ = cutlass::FastDivmod(pairs % per_section ? pairs % per_section : per_section);
    scheduler.by_heads_ = cutlass::FastDivmod(heads);
    return scheduler;
  }

  // Takes the sequences of a head one after another. work_tile() then returns a sequence as the head, and vice versa.
  void take_sequences_first() { by_heads_ = cutlass::FastDivmod(static_cast<int>(slots_.sequences)); }

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
  int pairs_ = 0;  // (sequence, head); heads if packed
  int per_section_, full_sections_, last_section_;
  bool is_reversed_, is_serpentine_;
};

// Stores a rounded accumulator to a warp's 16 rows of a tile in shared memory, from `column` on. `rows`: the first of
// them, in the tile's first panel.
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

// Stores the rows of a warp's accumulator, times a factor each, to global memory. They pass through the warp's 16 rows
// of a tile in shared memory, so that adjacent threads store adjacent 16 bytes. `rows` and `columns` bound the tile;
// row(i) points to the first column of row i.
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
  constexpr int kVectors = 2 * kValues / 8, kRows = 32 / kVectors;  // vectors per row, rows per access of a warp
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

// Zeroes the rows of a tile from `first` on: TMA may have copied rows of another sequence or padding, and 0 * NaN is
// NaN.
template <class Tile, class T>
__device__ void clear_rows(T* tile, int first, int thread, int threads) {
  constexpr int kVectors = Tile::kPanels * Tile::kPanel / 8, kRows = Tile::kSize / (kVectors * 8);
  for (int i = first * kVectors + thread; i < kRows * kVectors; i += threads)
    *reinterpret_cast<uint4*>(tile + Tile::at(i / kVectors, i % kVectors * 8)) = {};
  cutlass::arch::fence_view_async_shared();
}

}  // namespace fusedops::cuda::sm90
