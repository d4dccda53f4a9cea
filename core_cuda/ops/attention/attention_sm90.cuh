// What the attention kernels for compute capability 9.x share: tiles in shared memory that the bulk tensor copy engine
// (TMA) fills and the warpgroup products (wgmma) read, and the order in which blocks take their tasks.
#pragma once

// Products with any multiple of 8 columns.
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED

#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/arch/reg_reconfig.h"
#include "cutlass/fast_math.h"
#include "cutlass/numeric_conversion.h"
#include "cutlass/pipeline/sm90_pipeline.hpp"
// These come first: CuTe's names would hide them.
#include "core/common/exp.h"
#include "core/cuda/launch.cuh"
#include "ops/attention/attention_paths.h"

namespace fusedops::cuda::sm90 {

using cute::Int;

inline constexpr int kWarpgroup = 128;  // threads

// A product is a score, without its scale: times this factor it is an exponent of 2.
inline float factor_of(const Attention& call) { return static_cast<float>(call.scale * kLog2E); }

// How far the swizzle of a tile reaches: over 64 columns, or over 32 where two warpgroups have 96 each.
template <class T, int kColumns>
using RowAtom =
    std::conditional_t<kColumns == 192, cute::GMMA::Layout_K_SW64_Atom<T>, cute::GMMA::Layout_K_SW128_Atom<T>>;
template <class T, int kColumns>
using ColumnAtom =
    std::conditional_t<kColumns == 192, cute::GMMA::Layout_MN_SW64_Atom<T>, cute::GMMA::Layout_MN_SW128_Atom<T>>;

// Rows of `kColumns` features, as a product reads them that sums over the features; several stages of a ring.
template <class T, int kRows, int kColumns, int kStages = 1>
using RowTiles =
    decltype(cute::tile_to_shape(RowAtom<T, kColumns>{}, cute::Shape<Int<kRows>, Int<kColumns>, Int<kStages>>{}));

// The same bytes seen from the other side, as a product reads them that sums over the rows: [features, rows].
template <class T, int kRows, int kColumns, int kStages = 1>
using ColumnTiles =
    decltype(cute::tile_to_shape(ColumnAtom<T, kColumns>{}, cute::Shape<Int<kColumns>, Int<kRows>, Int<kStages>>{},
                                 cute::Step<cute::_2, cute::_1, cute::_3>{}));

// A tensor of heads for TMA, [position, feature, head, sequence].
template <class T>
auto global_rows(const HeadRows& rows, int positions, int features, int heads, int64_t sequences) {
  // TMA looks at the stride of a single element, too.
  const auto stride = [=](int64_t stride, int64_t size) { return size == 1 ? int64_t(features) : stride; };
  return cute::make_tensor(
      cute::make_gmem_ptr(static_cast<const T*>(rows.data)),
      cute::make_layout(cute::make_shape(positions, features, heads, static_cast<int>(sequences)),
                        cute::make_stride(stride(rows.position, positions), cute::_1{}, stride(rows.head, heads),
                                          stride(rows.sequence, sequences))));
}

template <class T>
using GlobalRows = decltype(global_rows<T>(HeadRows{}, 0, 0, 0, 0));

// The copies of tiles [kRows, kColumns] of such a tensor. Rows and features beyond its sizes arrive as zeros.
template <class T, int kRows, int kColumns>
auto tile_copy(const GlobalRows<T>& tensor) {
  using Tile = RowTiles<T, kRows, kColumns>;
  return cute::make_tma_copy(cute::SM90_TMA_LOAD{}, tensor, Tile{}(cute::_, cute::_, Int<0>{}),
                             cute::Shape<Int<kRows>, Int<kColumns>>{}, cute::_1{});
}

template <class T, int kRows, int kColumns>
using TileCopy = decltype(tile_copy<T, kRows, kColumns>(GlobalRows<T>{}));

// Starts the copy of the tile whose first row is at `position` of a head: a thread's work.
template <int kRows, int kColumns, class Copy, class Tile>
__forceinline__ __device__ void load_tile(const Copy& copy, uint64_t* barrier, int positions, int features, int heads,
                                          int sequences, int position, int head, int sequence, Tile&& tile) {
  auto all = copy.get_tma_tensor(cute::make_shape(positions, features, heads, sequences));
  auto rows = cute::domain_offset(cute::make_coord(position, 0), all(cute::_, cute::_, head, sequence));
  auto source = cute::local_tile(rows, cute::Shape<Int<kRows>, Int<kColumns>>{}, cute::make_coord(0, 0));
  auto part = copy.get_slice(0);
  cute::copy(copy.with(*barrier), part.partition_S(source), part.partition_D(tile));
}

// c (+)= a b, in the tensor cores' queue: the caller commits to nothing but the order, and waits.
template <bool kAdd, class Mma, class A, class B, class C>
__forceinline__ __device__ void multiply(Mma mma, const A& a, const B& b, C& c) {
  constexpr bool kFromRegisters = !cute::is_base_of<cute::GMMA::DescriptorIterator, typename Mma::FrgTypeA>::value;
  if constexpr (kFromRegisters) cute::warpgroup_fence_operand(const_cast<A&>(a));
  cute::warpgroup_fence_operand(c);
  cute::warpgroup_arrive();
  mma.accumulate_ = kAdd ? cute::GMMA::ScaleOut::One : cute::GMMA::ScaleOut::Zero;
#pragma unroll
  for (int k = 0; k < cute::size<2>(a); ++k) {
    cute::gemm(mma, a(cute::_, cute::_, k), b(cute::_, cute::_, k), c);
    mma.accumulate_ = cute::GMMA::ScaleOut::One;
  }
  cute::warpgroup_commit_batch();
  cute::warpgroup_fence_operand(c);
  if constexpr (kFromRegisters) cute::warpgroup_fence_operand(const_cast<A&>(a));
}

// Waits until all but the last kPending products are done: c are results of those, and not read before.
template <int kPending, class... C>
__forceinline__ __device__ void wait_for(C&... c) {
  cute::warpgroup_wait<kPending>();
  (cute::warpgroup_fence_operand(c), ...);
}

// An accumulator of a warpgroup's 64 rows: value v of a thread is in row(v / 2 % 2) and column(v). The left operand of
// another product has its values in the same order, so that one becomes the other without a shuffle.
struct Fragment {
  __device__ explicit Fragment(int thread) : first_row(thread / 32 * 16 + thread % 32 / 4), pair(thread % 4 * 2) {}

  __device__ int row(int which) const { return first_row + 8 * which; }
  __device__ int column(int value) const { return value / 4 * 8 + pair + value % 2; }

  int first_row, pair;
};

// A row's values are with four neighbouring threads.
template <class Op>
__forceinline__ __device__ float over_row(float value, Op&& op) {
  value = op(value, __shfl_xor_sync(0xffffffff, value, 1));
  return op(value, __shfl_xor_sync(0xffffffff, value, 2));
}

// float -> T, two at a time.
template <class From, class To>
__forceinline__ __device__ void convert(const From& from, To& to) {
  constexpr int kSize = decltype(cute::size(from))::value;
  using Converter = cutlass::NumericArrayConverter<typename To::value_type, float, kSize>;
  const auto* source = reinterpret_cast<const cutlass::Array<float, kSize>*>(from.data());
  *reinterpret_cast<cutlass::Array<typename To::value_type, kSize>*>(to.data()) = Converter()(*source);
}

// A left operand in registers for a sum over kDepth.
template <class T, int kDepth>
using LeftOperand = cute::Layout<cute::Shape<cute::Shape<cute::_2, cute::_2, cute::_2>, cute::_1, Int<kDepth / 16>>>;

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
struct Task {
  int sequence, head, tile;
};

// In which order the tasks are taken. Heads are taken in sections whose rows stay in the L2 cache. Within a section
// come the first tiles of all its heads, then the second ones, and so on; with `last_first` the last ones come first.
// With `to_and_fro` every other section goes the other way, and the last section goes as `last_first` says: where
// attention is causal, the tasks before and behind a section's end then have about as much to do. Divisions are
// multiplications, since all warps wait for them.
template <int kSize>
class Order {
 public:
  static Order of(const Slots<kSize>& slots, int heads, int64_t bytes_per_head, int least_pairs, bool last_first,
                  bool to_and_fro) {
    constexpr int64_t kCached = 24 << 20;  // of an L2 cache of 50 MB
    const auto pairs = static_cast<int>(slots.offsets ? heads : slots.sequences * heads);
    const int64_t cached = std::max<int64_t>(kCached / std::max<int64_t>(bytes_per_head, 1), least_pairs);
    const auto per_section = static_cast<int>(std::clamp<int64_t>(cached, 1, pairs));
    Order order;
    order.slots_ = slots, order.pairs_ = pairs, order.per_section_ = per_section, order.last_first_ = last_first;
    order.to_and_fro_ = to_and_fro, order.full_sections_ = pairs / per_section;
    order.last_section_ = (pairs - 1) / per_section;
    order.by_section_ = cutlass::FastDivmod(per_section * slots.tiles);
    order.by_pairs_ = cutlass::FastDivmod(per_section);
    order.by_last_pairs_ = cutlass::FastDivmod(pairs % per_section ? pairs % per_section : per_section);
    order.by_heads_ = cutlass::FastDivmod(heads);
    return order;
  }

  __host__ __device__ int tasks() const { return pairs_ * slots_.tiles; }

  __device__ Task task(int index) const {
    int section, within, place, pair, b, head;
    by_section_(section, within, index);
    (section == full_sections_ ? by_last_pairs_ : by_pairs_)(place, pair, within);
    by_heads_(b, head, section * per_section_ + pair);
    const bool turned = to_and_fro_ && (last_section_ - section) % 2;
    const int tile = last_first_ != turned ? slots_.tiles - 1 - place : place;
    if (!slots_.offsets) return {b, head, tile};
    const auto found = slots_.at(tile);
    return {found.sequence, head, found.tile};
  }

 private:
  Slots<kSize> slots_;
  cutlass::FastDivmod by_section_, by_pairs_, by_last_pairs_, by_heads_;
  int pairs_;  // of sequence and head
  int per_section_, full_sections_, last_section_;
  bool last_first_, to_and_fro_;
};

// The rows of a warp's accumulator, times a factor each, to global memory. They pass through a tile in shared memory,
// from which neighbouring threads take neighbouring 16 bytes; a warp's 16 rows of it are its own. `rows` and `columns`
// of the tile are there, and row(i) is the place of the first column of row i.
template <int kColumns, class Mma, class Values, class Tile, class Row>
__forceinline__ __device__ void store_rows(Mma mma, int thread, int first_row, int first_column,
                                           const float (&factors)[2], Values& values, Tile&& tile, int rows,
                                           int columns, Row&& row) {
  using T = typename std::remove_cvref_t<Tile>::value_type;
  auto rounded = cute::make_tensor<T>(values.layout());
#pragma unroll
  for (int i = 0; i < cute::size(values); ++i) values(i) *= factors[i / 2 % 2];
  convert(values, rounded);
  auto copy = cute::make_tiled_copy_C(cute::Copy_Atom<cute::SM90_U32x4_STSM_N, T>{}, mma);
  auto part = copy.get_slice(thread);
  __syncwarp();
  cute::copy(copy, part.retile_S(rounded), part.partition_D(tile));
  __syncwarp();
  constexpr int kVectors = kColumns / 8, kRows = 32 / kVectors;  // of a row; that a warp takes at a time
  const int lane = threadIdx.x % 32, column = first_column + lane % kVectors * 8;
#pragma unroll
  for (int i = 0; i < 16 / kRows; ++i) {
    const int at = first_row + i * kRows + lane / kVectors;
    if (lane < kRows * kVectors && at < rows && column < columns)
      *reinterpret_cast<uint4*>(row(at) + column) = *reinterpret_cast<const uint4*>(&tile(at, column));
  }
}

// Rows of a tile behind its last kept key become zeros: what TMA brought may be of another sequence, and 0 * NaN is
// NaN.
template <class Tile>
__device__ void clear_rows(Tile&& tile, int first, int thread, int threads) {
  constexpr int kVector = 8, kVectors = decltype(cute::size<1>(tile))::value / kVector;
  constexpr int kRows = decltype(cute::size<0>(tile))::value;
  for (int i = first * kVectors + thread; i < kRows * kVectors; i += threads)
    *reinterpret_cast<uint4*>(&tile(i / kVectors, i % kVectors * kVector)) = {};
  cutlass::arch::fence_view_async_shared();
}

}  // namespace fusedops::cuda::sm90
