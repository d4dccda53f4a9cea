// What the attention kernels for compute capability 9.x share: tiles in shared memory that the bulk tensor copy engine
// (TMA) fills and the warpgroup products (wgmma) read, and the order in which blocks take their tasks.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/arch/reg_reconfig.h"
#include "cutlass/numeric_conversion.h"
#include "cutlass/pipeline/sm90_pipeline.hpp"
// These come first: CuTe's names would hide them.
#include "core/common/exp.h"
#include "core/common/formulas.h"
#include "core/cuda/launch.cuh"
#include "ops/attention/attention_paths.h"

namespace fusedops::cuda::sm90 {

using cute::Int;

inline constexpr int kWarpgroup = 128;  // threads

// Rows of `kColumns` features, as a product reads them that sums over the features; several stages of a ring.
template <class T, int kRows, int kColumns, int kStages = 1>
using RowTiles = decltype(cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<T>{},
                                              cute::Shape<Int<kRows>, Int<kColumns>, Int<kStages>>{}));

// The same bytes seen from the other side, as a product reads them that sums over the rows: [features, rows].
template <class T, int kRows, int kColumns, int kStages = 1>
using ColumnTiles = decltype(cute::tile_to_shape(cute::GMMA::Layout_MN_SW128_Atom<T>{},
                                                 cute::Shape<Int<kColumns>, Int<kRows>, Int<kStages>>{},
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
__device__ void load_tile(const Copy& copy, uint64_t* barrier, int positions, int features, int heads, int sequences,
                          int position, int head, int sequence, Tile&& tile) {
  auto all = copy.get_tma_tensor(cute::make_shape(positions, features, heads, sequences));
  auto rows = cute::domain_offset(cute::make_coord(position, 0), all(cute::_, cute::_, head, sequence));
  auto source = cute::local_tile(rows, cute::Shape<Int<kRows>, Int<kColumns>>{}, cute::make_coord(0, 0));
  auto part = copy.get_slice(0);
  cute::copy(copy.with(*barrier), part.partition_S(source), part.partition_D(tile));
}

// c (+)= a b, in the tensor cores' queue: the caller commits to nothing but the order, and waits.
template <bool kAdd, class Mma, class A, class B, class C>
__device__ void multiply(Mma mma, const A& a, const B& b, C& c) {
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
__device__ float over_row(float value, Op&& op) {
  value = op(value, __shfl_xor_sync(0xffffffff, value, 1));
  return op(value, __shfl_xor_sync(0xffffffff, value, 2));
}

// float -> T, two at a time.
template <class From, class To>
__device__ void convert(const From& from, To& to) {
  constexpr int kSize = decltype(cute::size(from))::value;
  using Converter = cutlass::NumericArrayConverter<typename To::value_type, float, kSize>;
  const auto* source = reinterpret_cast<const cutlass::Array<float, kSize>*>(from.data());
  *reinterpret_cast<cutlass::Array<typename To::value_type, kSize>*>(to.data()) = Converter()(*source);
}

// A left operand in registers for a sum over kDepth.
template <class T, int kDepth>
using LeftOperand = cute::Layout<cute::Shape<cute::Shape<cute::_2, cute::_2, cute::_2>, cute::_1, Int<kDepth / 16>>>;

// A score as the softmax takes it: times `factor` it is the exponent of 2. `slope` is its derivative by the scaled
// product, where there is a soft cap.
struct Scores {
  float scale, softcap, factor;
  bool plain;

  // Without a soft cap, mask, or negative scale, a product is a score: the scale is in the factor.
  static Scores of(const Attention& call) {
    const bool plain = is_plain(call);
    const auto scale = static_cast<float>(call.scale), softcap = static_cast<float>(call.softcap);
    return {scale, softcap, plain ? static_cast<float>(call.scale * kLog2E) : static_cast<float>(kLog2E), plain};
  }

  static bool is_plain(const Attention& call) {
    return call.softcap == 0 && !call.has_mask && static_cast<float>(call.scale * kLog2E) > 0;
  }

  __device__ float capped(float product) const {
    const float score = product * scale;
    return softcap == 0 ? score : softcap * activations::tanh_(score / softcap).value;
  }

  __device__ float slope(float product) const {
    return softcap == 0 ? 1 : activations::tanh_(product * scale / softcap).slope;
  }
};

// Tiles of positions, in sequences that may be packed. Of packed ones nobody has read the offsets yet: tile i of
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

  // The sequence whose tiles have a slot of packed ones: the last that begins at or before it.
  __device__ int sequence(int slot) const {
    int begin = 0, end = static_cast<int>(sequences);  // it is in there
    while (end - begin > 1) {
      const int middle = (begin + end) / 2;
      (offsets[middle] / kSize + middle <= slot ? begin : end) = middle;
    }
    return begin;
  }
};

// A task: a tile of one head of one sequence.
struct Task {
  int sequence, head, tile;
};

// In which order the tasks are taken. Heads are taken in sections whose rows stay in the L2 cache, and within a section
// the tiles that have most to do come first: where attention is causal, the last queries and the first keys.
template <int kSize>
struct Order {
  static Order of(const Slots<kSize>& slots, int heads, int64_t bytes_per_head, bool last_first) {
    constexpr int64_t kCached = 24 << 20;  // of an L2 cache of 50 MB
    const int64_t pairs = slots.offsets ? heads : slots.sequences * heads;
    const int64_t section = std::clamp<int64_t>(kCached / std::max<int64_t>(bytes_per_head, 1), 1, pairs);
    return {slots, heads, static_cast<int>(section), pairs, last_first};
  }

  __host__ __device__ int64_t tasks() const { return pairs * slots.tiles; }

  __device__ Task task(int64_t index) const {
    const int64_t section = index / (int64_t(per_section) * slots.tiles);
    const int64_t first = section * per_section;
    const int width = pairs - first < per_section ? static_cast<int>(pairs - first) : per_section;
    const int64_t within = index - first * slots.tiles, pair = first + within % width;
    const int place = static_cast<int>(within / width), tile = last_first ? slots.tiles - 1 - place : place;
    const int head = static_cast<int>(pair % heads);
    if (!slots.offsets) return {static_cast<int>(pair / heads), head, tile};
    const int b = slots.sequence(tile);
    return {b, head, tile - static_cast<int>(slots.slot(b, 0))};
  }

  Slots<kSize> slots;
  int heads, per_section;
  int64_t pairs;  // of sequence and head
  bool last_first;
};

// Whether packed sequences are what they must be: their offsets ascend from 0 to the number of positions. A whole block
// asks. On a GPU nobody else has looked: where they are not, results are NaN.
__device__ inline bool are_packed(const int32_t* offsets, int64_t sequences, int positions) {
  bool good = true;
  for (int64_t b = threadIdx.x; b <= sequences; b += blockDim.x)
    good &= b == 0 ? offsets[0] == 0 : offsets[b - 1] <= offsets[b] && offsets[b] <= positions;
  good &= offsets[sequences] == positions;
  return __syncthreads_and(good);
}

__device__ inline bool is_packed_well(const Attention& call) {
  return !call.offsets_q || (are_packed(call.offsets_q, call.sequences, call.packed_queries) &&
                             are_packed(call.offsets_k, call.sequences, call.packed_keys));
}

// Contiguous rows of a result of packed sequences become NaN: all blocks together.
template <class T>
__device__ void fill_with_nan(void* data, int64_t size) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < size; i += int64_t(gridDim.x) * blockDim.x)
    static_cast<T*>(data)[i] = T(NAN);
}

// A row of results of a warpgroup's accumulator, times a factor. The four threads that share it exchange pairs of
// columns, so that each writes 16 bytes at a time. `which` of a thread's two rows; all threads of a warp take part.
template <int kColumns, class T, class Values>
__device__ void store_row(const Fragment& fragment, int which, float factor, bool is_there, int columns,
                          const Values& values, T* row) {
  constexpr int kBlocks = kColumns / 8;  // of 8 columns: two in each of four threads
  static_assert(kBlocks % 4 == 0);
  const int own = fragment.pair / 2;
  const auto packed = [&](int block) {
    cutlass::Array<T, 2> pair;
    pair[0] = T(values(4 * block + 2 * which) * factor), pair[1] = T(values(4 * block + 2 * which + 1) * factor);
    return reinterpret_cast<const uint32_t&>(pair);
  };
#pragma unroll
  for (int first = 0; first < kBlocks; first += 4) {
    // Of four blocks each thread gathers one, in four rounds: it sends the thread beside it what belongs there.
    const uint32_t pairs[4] = {packed(first), packed(first + 1), packed(first + 2), packed(first + 3)};
    uint32_t vector[4];
#pragma unroll
    for (int round = 0; round < 4; ++round) {
      const int other = own ^ round;
      uint32_t sent = pairs[0];
#pragma unroll
      for (int i = 1; i < 4; ++i) sent = other == i ? pairs[i] : sent;
      const uint32_t received = __shfl_xor_sync(0xffffffff, sent, round);
#pragma unroll
      for (int i = 0; i < 4; ++i) vector[i] = other == i ? received : vector[i];
    }
    const int column = (first + own) * 8;
    if (is_there && column < columns)
      *reinterpret_cast<uint4*>(row + column) = {vector[0], vector[1], vector[2], vector[3]};
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
