// Main loop of matmul_swap_ab_sm90.cuh: a producer thread copies operand tiles through TMA into a ring in shared
// memory, and consumer warpgroups multiply them.
#pragma once

#include "core/cuda/launch.cuh"
#include "core/cuda/sm90/ring.cuh"
#include "core/cuda/sm90/swizzled_tile.cuh"
#include "core/cuda/sm90/tma.cuh"
#include "ops/products/epilogue.cuh"
#include "ops/products/matmul_kernels.h"

namespace fusedops::cuda {

// Lines of op(b) in a TMA box. `along_k`: their unit stride is along k.
FUSEDOPS_HD constexpr int column_lines(bool along_k, int n) { return along_k && n < kTileLines ? n : kTileLines; }

// Each block of a pair copies half of a multicast tile: half of its lines, a multiple of 8, if they run along k, or
// half of its depth otherwise.
FUSEDOPS_HD constexpr int half_of_lines(int lines) { return (lines + 15) / 16 * 8; }

// A tile of c. kRowsAlongK and kAlongK: the lines of unit stride of op(a), and of op(b), run along k.
template <class T_, int kColumns_, int kRows_, bool kRowsAlongK_, bool kAlongK_>
struct SwapAb {
  using T = T_;
  static constexpr bool kRowsAlongK = kRowsAlongK_, kAlongK = kAlongK_;
  static constexpr int kLines = kTileLines, kDepth = kTileDepth;
  static constexpr int kRows = kRows_, kColumns = kColumns_;

  // A consumer warpgroup has 64 columns, but 128 if a tile has 256: four consumers and the producer would not have
  // enough registers. Two consumers take registers of the producer's warpgroup.
  static constexpr int kProducts = kColumns == 256 ? 2 : 1, kWarpgroups = kColumns / kLines / kProducts;
  static constexpr bool kTakesRegisters = kProducts > 1;
  static constexpr int kConsumers = kWarpgroups * 128, kConsumerWarps = kConsumers / 32;
  static constexpr int kThreads = kConsumers + (kTakesRegisters ? 128 : 32);

  // As many stages as fit, beside at least 32 staged rows of c if blocks may be persistent. Tiles of 64 columns need
  // all memory for the ring; with few rows two blocks fit on a multiprocessor.
  static constexpr bool kCanPersist = kColumns > 64, kCanSplit = kColumns <= kMaxSplitColumns;
  static constexpr int kBlocks = !kCanPersist && kRows <= 64 ? 2 : 1;  // on a multiprocessor
  static constexpr int kRoom = kCanPersist ? (227 << 10) - 512 : (224 << 10) / kBlocks, kMinStaged = 32;
  static constexpr int kStageBytes = (kColumns + kRows) * kDepth * int(sizeof(T));
  static constexpr int kRowBytes = kColumns * int(sizeof(T));
  static constexpr int kStages = (kRoom - (kCanPersist ? kMinStaged * kRowBytes : 0)) / kStageBytes;
  static constexpr int kMaxStaged = (kRoom - kStages * kStageBytes) / kRowBytes / 8 * 8;
  static constexpr int kStores = kCanPersist ? (kRows + kMaxStaged - 1) / kMaxStaged : 1;
  static constexpr int kStagedRows = kCanPersist ? (kRows / 8 + kStores - 1) / kStores * 8 : kRows;
  static constexpr int kSumPitch = kColumns + 4;  // keeps a warp's sums in different banks

  struct Shared {
    alignas(1024) T matrix[kStages * kColumns * kDepth];
    alignas(1024) T rows[kStages * kRows * kDepth];
    alignas(kCanPersist ? 1024 : 16) T staged[kColumns / kLines][kCanPersist ? kStagedRows * kLines : 8];  // of c
    uint64_t full[kStages], empty[kStages];
  };
  static_assert(offsetof(Shared, full) >= kRows * kSumPitch * sizeof(float));
  static_assert(sizeof(Shared) <= 227 << 10);

  // Lines that do not run along k are copied in pieces of 64 elements: a TMA box has at most 128 bytes of a line.
  static constexpr int kRowLines = kRowsAlongK ? kRows : kLines;

  // Accumulator of a thread, see Fragment in wgmma.cuh. A column of c is a row of the fragment.
  using Sums = float[kProducts][kRows / 2];
  using State = sm90::RingState<kStages>;
};

template <class T>
struct SwapAbCall {
  int m, n, k;
  int row_tiles, column_tiles;
  int rows;  // rows of a tile, at most kRows: tiles divide the rows of c evenly
  int k_splits;
  Sharing sharing;
  bool is_persistent;  // blocks loop over tiles
  T* c;
  int64_t c_stride;
  bool store_packs;  // stores four adjacent elements in one access
  ElementEpilogue<T> epilogue;

  __device__ bool is_multicast() const { return sharing != Sharing::nothing; }
};

// The current work tile of a block, and its split of k. The splits of a tile form a cluster, and so do two tiles that
// share columns or rows. Tiles that run at the same time span at most kGroupHeight rows of tiles, so that L2 holds
// their operands. The last tile along each dimension ends where c does and overlaps the one before, which writes the
// same values there: to copy lines behind the end of a matrix, as zeros, takes longer.
template <class S>
struct SwapAbWork {
  static constexpr int kGroupHeight = 16;
  const SwapAbCall<typename S::T>& call;
  int row, column;  // first of the tile
  int split, k_tiles;

  __device__ explicit SwapAbWork(const SwapAbCall<typename S::T>& call)
      : call(call),
        split(blockIdx.x % call.k_splits),
        k_tiles(((call.k + S::kDepth - 1) / S::kDepth - split + call.k_splits - 1) / call.k_splits) {
    go_to(blockIdx.x / call.k_splits);
  }

  __device__ void go_to(int tile) {
    const int of_group = kGroupHeight * call.column_tiles, first = tile / of_group * kGroupHeight;
    const int high = min(kGroupHeight, call.row_tiles - first), in_group = tile % of_group;
    const bool shares_rows = call.sharing == Sharing::rows;
    const int slot = shares_rows ? in_group / 2 : in_group;
    const int column_tile = shares_rows ? slot / high * 2 + in_group % 2 : slot / high;
    row = min((first + slot % high) * call.rows, call.m - call.rows);
    column = max(min(column_tile * S::kColumns, call.n - S::kColumns), 0);
  }
  // Calls for_tile for the current tile of the block and each further one.
  template <class ForTile>
  __device__ void for_each(ForTile&& for_tile) {
    const int tiles = call.row_tiles * call.column_tiles;
    for (int tile = blockIdx.x / call.k_splits;;) {
      for_tile();
      tile += gridDim.x;
      if (tile >= tiles) return;
      go_to(tile);
    }
  }
};

template <bool kAlongK, bool kToPair>
__device__ void copy_lines(const CUtensorMap& tiles, uint64_t* barrier, void* to, int line, int k) {
  constexpr uint16_t kBoth = 0b11;
  const int x = kAlongK ? k : line, y = kAlongK ? line : k;
  if constexpr (kToPair)
    cute::SM90_TMA_LOAD_MULTICAST_2D::copy(&tiles, barrier, kBoth, sm90::kCacheHint, to, x, y);
  else
    cute::SM90_TMA_LOAD_2D::copy(&tiles, barrier, sm90::kCacheHint, to, x, y);
}

// Copies `lines` lines of an operand tile in pieces of kPiece; only this block's half if the pair shares the tile.
template <bool kAlongK, int kSize, int kPiece, class T>
__device__ void copy_operand(const CUtensorMap& tiles, bool shared, uint64_t* full, T* to, int line, int k, int lines) {
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

// The producer thread: copies all k-tiles into the ring. Rows behind the tile and columns behind c keep their former
// values: products with them are not stored.
template <class S>
__device__ void copy_tiles(typename S::Shared& shared, typename S::State* state, const SwapAbWork<S>& work,
                           const CUtensorMap& tiles_of_a, const CUtensorMap& tiles_of_b) {
  const SwapAbCall<typename S::T>& call = work.call;
  const bool shares_columns = call.sharing == Sharing::columns, shares_rows = call.sharing == Sharing::rows;
  const int rows = S::kRowsAlongK ? call.rows : (call.rows + S::kLines - 1) / S::kLines * S::kLines;
  const int arriving_rows = S::kRowsAlongK && shares_rows ? 2 * half_of_lines(rows) : rows;
  const int lines = S::kColumns / S::kLines * column_lines(S::kAlongK, call.n) + arriving_rows;
  const int bytes = lines * S::kDepth * int(sizeof(typename S::T));
  int k = work.split * S::kDepth;
  // The producer has only 40 registers if kTakesRegisters.
#pragma unroll(S::kTakesRegisters ? 1 : 2)
  for (int i = 0; i < work.k_tiles; ++i, ++*state, k += call.k_splits * S::kDepth) {
    const int stage = state->stage;
    uint64_t* const full = &shared.full[stage];
    if (state->count >= S::kStages) cutlass::arch::ClusterBarrier::wait(&shared.empty[stage], state->phase ^ 1);
    cutlass::arch::ClusterTransactionBarrier::arrive_and_expect_tx(full, bytes);
    copy_operand<S::kAlongK, S::kColumns, S::kLines>(
        tiles_of_b, shares_columns, full, shared.matrix + stage * S::kColumns * S::kDepth, work.column, k, S::kColumns);
    copy_operand<S::kRowsAlongK, S::kRows, S::kRowLines>(tiles_of_a, shares_rows, full,
                                                         shared.rows + stage * S::kRows * S::kDepth, work.row, k, rows);
  }
}

// The consumers' products of a tile. A stage is empty when all warps of both blocks of a pair have read it.
template <class S>
__forceinline__ __device__ void multiply_tiles(typename S::Shared& shared, typename S::State* state,
                                               const SwapAbWork<S>& work, typename S::Sums& sums) {
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  constexpr int kProductOffset = sm90::line_offset<S::kDepth>(S::kWarpgroups * S::kLines);
  // A uniform index keeps the descriptors in uniform registers, where the instructions read them.
  const int group = cutlass::canonical_warp_group_idx(), lane = threadIdx.x % 32;
  const auto first_matrix = sm90::line_operand<S::kAlongK, S::kColumns, S::kDepth>(shared.matrix, group * S::kLines);
  const auto first_rows = sm90::line_operand<S::kRowsAlongK, S::kRows, S::kDepth>(shared.rows);
  const auto release = [&](int stage) {
    uint64_t* const empty = &shared.empty[stage];
    if (!work.call.is_multicast()) {
      if (lane == 0) Empty::arrive(empty);
    } else if (lane < 2) {
      Empty::arrive(empty, /*cta_id=*/lane, /*pred=*/true);
    }
  };
#pragma unroll
  for (auto& of_product : sums) {
#pragma unroll
    for (float& sum : of_product) sum = 0;
    sm90::fence_registers(of_product);
  }
  int last_stage = 0;
  for (int i = 0; i < work.k_tiles; ++i, ++*state) {
    const int stage = state->stage;
    Full::wait(&shared.full[stage], state->phase);
    const auto matrix = first_matrix + stage * sm90::line_offset<S::kDepth>(S::kColumns);
    const auto rows = first_rows + stage * sm90::line_offset<S::kDepth>(S::kRows);
    cute::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < rows.kKBlocks; ++k)
#pragma unroll
      for (int product = 0; product < S::kProducts; ++product)
        sm90::multiply_k_block<typename S::T, matrix.kMajor, rows.kMajor>((matrix + product * kProductOffset).at(k),
                                                                          rows.at(k), sums[product], /*adds=*/true);
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<1>();  // the previous stage has been read
    if (i > 0) release(last_stage);
    last_stage = stage;
  }
  cute::warpgroup_wait<0>();
  release(last_stage);
#pragma unroll
  for (auto& of_product : sums) sm90::fence_registers(of_product);
}

}  // namespace fusedops::cuda
