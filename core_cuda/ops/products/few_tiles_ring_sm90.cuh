// What matmul_few_tiles_sm90.cuh has in shared memory, a ring of tiles of both operands: one thread of a block copies
// them there through TMA, its warpgroups multiply them.
#pragma once

// Products with any multiple of 8 rows.
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED

#include <algorithm>
#include <array>
#include <string>

#include "core/cuda/launch.cuh"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/numeric_types.h"
#include "ops/products/epilogue.cuh"
#include "ops/products/matmul_paths.h"

namespace fusedops::cuda {

// A tile of c. kRowsAlongK and kAlongK: the lines of unit stride of op(a), and of op(b), run along k.
template <class T_, class Element_, int kColumns_, int kRows_, bool kRowsAlongK_, bool kAlongK_>
struct FewTiles {
  using T = T_;              // of c
  using Element = Element_;  // the same for CUTLASS
  static constexpr bool kRowsAlongK = kRowsAlongK_, kAlongK = kAlongK_;
  static constexpr int kLines = 64, kDepth = kTileDepth;  // of what a product takes of b
  static constexpr int kRows = kRows_, kColumns = kColumns_;

  // A warpgroup multiplies 64 columns, but 128 of 256: five warps, four warpgroups' and the one that copies, would have
  // to share a quarter of the registers. Its sums need registers of the warpgroup that copies.
  static constexpr int kProducts = kColumns == 256 ? 2 : 1, kWarpgroups = kColumns / kLines / kProducts;
  static constexpr bool kTakesRegisters = kProducts > 1;
  static constexpr int kConsumers = kWarpgroups * 128, kConsumerWarps = kConsumers / 32;
  static constexpr int kThreads = kConsumers + (kTakesRegisters ? 128 : 32);

  // As many stages as fit; beside them, a part of c on its way to memory, of 32 rows at least, if blocks may stay.
  // Those of 64 columns need all room for the ring, and of few rows two fit on a multiprocessor.
  static constexpr bool kCanStay = kColumns > 64;
  static constexpr int kBlocks = !kCanStay && kRows <= 64 ? 2 : 1;  // on a multiprocessor
  static constexpr int kRoom = kCanStay ? (227 << 10) - 512 : (224 << 10) / kBlocks, kLeastStaged = 32;
  static constexpr int kStageBytes = (kColumns + kRows) * kDepth * int(sizeof(Element));
  static constexpr int kRowBytes = kColumns * int(sizeof(Element));
  static constexpr int kStages = (kRoom - (kCanStay ? kLeastStaged * kRowBytes : 0)) / kStageBytes;
  static constexpr int kMostStaged = (kRoom - kStages * kStageBytes) / kRowBytes / 8 * 8;
  static constexpr int kStores = kCanStay ? (kRows + kMostStaged - 1) / kMostStaged : 1;
  static constexpr int kStagedRows = kCanStay ? (kRows / 8 + kStores - 1) / kStores * 8 : kRows;
  static constexpr int kSumPitch = kColumns + 4;  // keeps a warp's sums in different banks

  // Where the elements of all tiles of the ring are in shared memory.
  template <bool kAlong>
  using Atom =
      std::conditional_t<kAlong, cute::GMMA::Layout_K_SW128_Atom<Element>, cute::GMMA::Layout_MN_SW128_Atom<Element>>;
  template <bool kAlong, int kSize>
  using Ring = decltype(cute::tile_to_shape(Atom<kAlong>(),
                                            cute::Shape<cute::Int<kSize>, cute::Int<kDepth>, cute::Int<kStages>>(),
                                            cute::Step<cute::_2, cute::_1, cute::_3>()));
  using RowRing = Ring<kRowsAlongK, kRows>;
  using MatrixRing = Ring<kAlongK, kColumns>;

  struct Shared {
    alignas(1024) Element matrix[cute::cosize_v<MatrixRing>];
    alignas(1024) Element rows[cute::cosize_v<RowRing>];
    alignas(kCanStay ? 1024 : 16) Element staged[kColumns / kLines][kCanStay ? kStagedRows * kLines : 8];  // of c
    uint64_t full[kStages], empty[kStages];
  };
  static_assert(offsetof(Shared, full) >= kRows * kSumPitch * sizeof(float));
  static_assert(sizeof(Shared) <= 227 << 10);

  static constexpr auto major(bool along_k) { return along_k ? cute::GMMA::Major::K : cute::GMMA::Major::MN; }
  using Mma = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<Element, Element, float,
                                 cute::Shape<cute::Int<kColumns>, cute::Int<kRows>, cute::Int<kDepth>>, major(kAlongK),
                                 major(kRowsAlongK)>(),
      cute::Layout<cute::Shape<cute::Int<kWarpgroups>, cute::_1, cute::_1>>()));

  // The rows of a tile whose lines do not run along k come in pieces of 64, since TMA copies 128 bytes of a line at
  // most.
  static constexpr int kRowLines = kRowsAlongK ? kRows : kLines;
  static __host__ __device__ int column_lines(int n) { return kAlongK && n < kLines ? n : kLines; }
};

// Of a tile of lines that run along k, each block of a pair copies half of the lines, as many as a multiple of 8; of
// others, half of the depth.
constexpr int half_of_lines(int lines) { return (lines + 15) / 16 * 8; }

// How TMA copies `count` lines of a matrix [lines, k], `depth` of k of each, to where wgmma reads them.
template <class Element, bool kAlongK>
Status describe_tiles(const Matmul::Matrix& matrix, int64_t lines, int64_t k, int count, int depth,
                      cute::TmaDescriptor* result) {
  const auto pair = [](auto along_k, auto across) {
    return std::array{kAlongK ? along_k : across, kAlongK ? across : along_k};
  };
  const auto sizes = pair(cuuint64_t(k), cuuint64_t(lines));
  const auto box = pair(cuuint32_t(depth), cuuint32_t(count));
  const cuuint32_t every[2] = {1, 1};
  const cuuint64_t stride = matrix.stride * sizeof(Element);
  // Of lines that begin elsewhere, the rest of 256 bytes is read for nothing: 7 % of 3000 x 3000 x 3000.
  const auto promotion = stride % 128 == 0 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  const CUresult error = CUTLASS_CUDA_DRIVER_WRAPPER_CALL(cuTensorMapEncodeTiled)(
      result, cute::TMA::to_CUtensorMapDataType<Element>(), 2, const_cast<void*>(matrix.data), sizes.data(), &stride,
      box.data(), every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (error == CUDA_SUCCESS) return {};
  return Status::error("fusedops: cuTensorMapEncodeTiled failed with error ", std::to_string(int(error)));
}

// The same, or for halves of which each block of a pair copies one.
template <class Element, bool kAlongK>
Status describe_operand(const Matmul::Matrix& matrix, int64_t lines, int64_t k, int count, bool halves,
                        cute::TmaDescriptor* result) {
  return describe_tiles<Element, kAlongK>(matrix, lines, k, halves && kAlongK ? half_of_lines(count) : count,
                                          halves && !kAlongK ? kTileDepth / 2 : kTileDepth, result);
}

template <class T>
struct FewTilesCall {
  int m, n, k;
  int row_tiles, column_tiles;
  int rows;   // a tile has kRows of them at most: those of c are shared out evenly
  int parts;  // of k
  Sharing sharing;
  bool stays;  // a block goes from tile to tile
  T* c;
  int64_t c_stride;
  bool store_packs;  // four neighbours in one access
  ElementEpilogue<T> epilogue;

  __device__ bool shares() const { return sharing != Sharing::nothing; }
};

// A block's tiles and its part of k. The parts of a tile are a cluster, and so are two tiles that share columns or
// rows. Tiles that run at the same time have at most kHigh different rows of tiles, so that the L2 cache holds what
// they read. The last tile of rows, or of columns, ends where c does and begins within the one before, which computes
// and writes the same values there: to copy lines behind the end of a matrix, as zeros, would take longer.
template <class S>
struct FewTilesPlace {
  static constexpr int kHigh = 16;
  const FewTilesCall<typename S::T>& call;
  int row, column;  // the first of the tile
  int part;

  __device__ explicit FewTilesPlace(const FewTilesCall<typename S::T>& call)
      : call(call), part(blockIdx.x % call.parts) {
    go_to(blockIdx.x / call.parts);
  }

  __device__ void go_to(int tile) {
    const int of_group = kHigh * call.column_tiles, first = tile / of_group * kHigh;
    const int high = min(kHigh, call.row_tiles - first), in_group = tile % of_group;
    const bool shares_rows = call.sharing == Sharing::rows;
    const int place = shares_rows ? in_group / 2 : in_group;
    const int column_tile = shares_rows ? place / high * 2 + in_group % 2 : place / high;
    row = min((first + place % high) * call.rows, call.m - call.rows);
    column = max(min(column_tile * S::kColumns, call.n - S::kColumns), 0);
  }
  // Calls for_tile for each tile of the block, from the one where it is.
  template <class ForTile>
  __device__ void for_each(ForTile&& for_tile) {
    const int tiles = call.row_tiles * call.column_tiles;
    for (int tile = blockIdx.x / call.parts;;) {
      for_tile();
      tile += gridDim.x;
      if (tile >= tiles) return;
      go_to(tile);
    }
  }
  __device__ int steps() const { return ((call.k + S::kDepth - 1) / S::kDepth - part + call.parts - 1) / call.parts; }
  __device__ int first_of(int step) const { return (part + step * call.parts) * S::kDepth; }
};

template <bool kAlongK, bool kToPair>
__device__ void copy_lines(const cute::TmaDescriptor& tiles, uint64_t* barrier, void* to, int line, int k) {
  constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  constexpr uint16_t kBoth = 0b11;
  const int x = kAlongK ? k : line, y = kAlongK ? line : k;
  if constexpr (kToPair)
    cute::SM90_TMA_LOAD_MULTICAST_2D::copy(&tiles, barrier, kBoth, kHint, to, x, y);
  else
    cute::SM90_TMA_LOAD_2D::copy(&tiles, barrier, kHint, to, x, y);
}

// A tile of one operand, in pieces of kPiece lines, of which `lines` are copied; if the pair shares it, its half.
template <bool kAlongK, int kSize, int kPiece, class Element>
__device__ void copy_operand(const cute::TmaDescriptor& tiles, bool shared, uint64_t* full, Element* to, int line,
                             int k, int lines) {
#pragma unroll
  for (int i = 0; i < kSize; i += kPiece) {
    if (i >= lines) break;
    if (!shared) {
      copy_lines<kAlongK, false>(tiles, full, to + i * kTileDepth, line + i, k);
      continue;
    }
    const int second = blockIdx.x % 2, of_piece = kPiece == kSize ? lines : kPiece;
    const int skipped_lines = kAlongK ? second * (of_piece - half_of_lines(of_piece)) : 0;
    const int skipped_depth = kAlongK ? 0 : second * kTileDepth / 2;
    copy_lines<kAlongK, true>(tiles, full, to + (i + skipped_lines) * kTileDepth + skipped_depth * kPiece,
                              line + i + skipped_lines, k + skipped_depth);
  }
}

// One thread: copies the tiles of all steps into the ring; `step` counts those of all tiles. Rows behind those of a
// tile, and columns behind those of c, are what was there before: what is multiplied with them is not written.
template <class S>
__device__ void copy_tiles(typename S::Shared& shared, int* step, const FewTilesPlace<S>& place,
                           const cute::TmaDescriptor& tiles_of_a, const cute::TmaDescriptor& tiles_of_b) {
  const FewTilesCall<typename S::T>& call = place.call;
  const bool shares_columns = call.sharing == Sharing::columns, shares_rows = call.sharing == Sharing::rows;
  const int rows = S::kRowsAlongK ? call.rows : (call.rows + S::kLines - 1) / S::kLines * S::kLines;
  const int arriving_rows = S::kRowsAlongK && shares_rows ? 2 * half_of_lines(rows) : rows;
  const int lines = S::kColumns / S::kLines * S::column_lines(call.n) + arriving_rows;
  const int bytes = lines * S::kDepth * int(sizeof(typename S::Element));
  for (int i = 0, count = place.steps(); i < count; ++i, ++*step) {
    const int stage = *step % S::kStages, turn = *step / S::kStages, k = place.first_of(i);
    uint64_t* const full = &shared.full[stage];
    if (turn > 0) cutlass::arch::ClusterBarrier::wait(&shared.empty[stage], (turn - 1) % 2);
    cutlass::arch::ClusterTransactionBarrier::arrive_and_expect_tx(full, bytes);
    copy_operand<S::kAlongK, S::kColumns, S::kLines>(tiles_of_b, shares_columns, full,
                                                     shared.matrix + stage * S::kColumns * S::kDepth, place.column, k,
                                                     S::kColumns);
    copy_operand<S::kRowsAlongK, S::kRows, S::kRowLines>(
        tiles_of_a, shares_rows, full, shared.rows + stage * S::kRows * S::kDepth, place.row, k, rows);
  }
}

// The warpgroups' products of a tile. A stage is empty when all warps that read it, of both blocks of a pair, are done.
template <class S, class Sums>
__forceinline__ __device__ void multiply_tiles(typename S::Shared& shared, int* step, const FewTilesPlace<S>& place,
                                               const typename S::Mma& mma, Sums& sums) {
  using namespace cute;
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  const ThrMMA of_thread = mma.get_thread_slice(threadIdx.x);
  const Tensor matrix = of_thread.make_fragment_A(
      of_thread.partition_A(make_tensor(make_smem_ptr(shared.matrix), typename S::MatrixRing())));
  const Tensor rows =
      of_thread.make_fragment_B(of_thread.partition_B(make_tensor(make_smem_ptr(shared.rows), typename S::RowRing())));
  const int lane = threadIdx.x % 32;
  const auto release_last = [&] {
    uint64_t* const empty = &shared.empty[(*step - 1) % S::kStages];
    if (!place.call.shares()) {
      if (lane == 0) Empty::arrive(empty);
    } else if (lane < 2) {
      Empty::arrive(empty, /*cta_id=*/lane, /*pred=*/true);
    }
  };
  clear(sums);
  warpgroup_fence_operand(sums);
  for (int i = 0, count = place.steps(); i < count; ++i, ++*step) {
    const int stage = *step % S::kStages;
    Full::wait(&shared.full[stage], *step / S::kStages % 2);
    warpgroup_arrive();
    gemm(mma, matrix(_, _, _, stage), rows(_, _, _, stage), sums);
    warpgroup_commit_batch();
    warpgroup_wait<1>();  // the tile before this one is read
    if (i > 0) release_last();
  }
  warpgroup_wait<0>();
  release_last();
  warpgroup_fence_operand(sums);
}

}  // namespace fusedops::cuda
