// 16-bit products with small grids on compute capability 9.x: skinny ones, as in decoding, and up to some thousand
// rows. Limit: reading b once, the L2 cache, or the tensor cores.
//
// The operands are swapped. Columns of c take the place of M, which is 64 for wgmma, and rows that of N, which is any
// multiple of 8. So 8 rows cost less than 64. A block has a tile of c with 64 or 128 columns per consumer warpgroup. A
// cluster of up to eight blocks splits the k of a tile: each block takes every k_splits-th k-tile, then the blocks add
// their sums in the order of their ranks.
//
// Without splits, and with no epilogue but a bias, blocks are persistent: the next tile is copied while the last one is
// stored. Two blocks may form a cluster that loads the tile of b or of a that they share by multicast.
//
// The order of a sum depends on k_splits alone. With one split it is the order of all other kernels for 9.x.
#pragma once

#include <algorithm>
#include <array>

#include "cutlass/arch/reg_reconfig.h"
#include "ops/products/swap_ab_store_sm90.cuh"

namespace fusedops::cuda {

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    swap_ab_kernel(const SwapAbCall<typename S::T> call, __grid_constant__ const CUtensorMap tiles_of_a,
                   __grid_constant__ const CUtensorMap tiles_of_b, __grid_constant__ const CUtensorMap tiles_of_c) {
  using cutlass::arch::NamedBarrier;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  const bool is_consumer = cutlass::canonical_warp_idx_sync() < S::kConsumerWarps;
  SwapAbWork<S> work(call);  // before the wait: its divisions take a third of a microsecond
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < S::kStages; ++stage) {
      cutlass::arch::ClusterTransactionBarrier::init(&shared.full[stage], 1);
      cutlass::arch::ClusterBarrier::init(&shared.empty[stage], S::kConsumerWarps * (call.is_multicast() ? 2 : 1));
    }
    cutlass::arch::fence_barrier_init();
  }
  if (threadIdx.x == S::kConsumers) {
    cute::prefetch_tma_descriptor(&tiles_of_a);
    cute::prefetch_tma_descriptor(&tiles_of_b);
  }
  cudaGridDependencySynchronize();
  if (call.is_multicast())
    cute::cluster_sync();
  else
    __syncthreads();

  float* const all = reinterpret_cast<float*>(memory);
  const bool has_one_split = !S::kCanSplit || call.k_splits == 1;
  typename S::State state;
  // No code follows the branch but a barrier: otherwise the compiler gives both kinds of warps the same registers.
  if (is_consumer) {
    if constexpr (S::kTakesRegisters) cutlass::arch::warpgroup_reg_alloc<232>();
    typename S::Sums sums;
    work.for_each([&] {
      multiply_tiles<S>(shared, &state, work, sums);
      if constexpr (S::kCanPersist)
        if (call.is_persistent) store_tile<S>(shared, sums, work, tiles_of_c);
    });
    if (call.is_persistent) {
      cute::tma_store_wait<0>();
    } else {
      NamedBarrier::sync(S::kConsumers, 0u);
      spread_sums<S>(all, sums);
      if (has_one_split)
        NamedBarrier::sync(S::kConsumers, 0u);
      else
        cute::cluster_sync();
      finish_tile<S>(all, work);
    }
  } else {
    if constexpr (S::kTakesRegisters) cutlass::arch::warpgroup_reg_dealloc<40>();
    if (threadIdx.x == S::kConsumers)
      work.for_each([&] { copy_tiles<S>(shared, &state, work, tiles_of_a, tiles_of_b); });
    __syncwarp();
    // Lets the next kernel start. Where some multiprocessors have two blocks it starts at the end, since blocks that
    // start earlier are distributed unevenly.
    if (gridDim.x <= kMultiprocessors) cudaTriggerProgrammaticLaunchCompletion();
    if (!has_one_split) cute::cluster_sync();
  }
  // A block must not exit while others read its sums or its pair copies into its memory.
  if (!has_one_split || call.is_multicast()) cute::cluster_sync();
}

// TMA descriptor of boxes [count, depth] of a matrix [lines, k]. `along_k`: the unit stride is along k.
inline Status describe_tiles(const Matmul::Matrix& matrix, bool along_k, int64_t lines, int64_t k, int count, int depth,
                             CUtensorMap* result) {
  const auto pair = [&](auto along, auto across) {
    return std::array{along_k ? along : across, along_k ? across : along};
  };
  const auto stride = cuuint64_t(matrix.stride) * 2;
  const sm90::Boxes<2> boxes = {.data = matrix.data,
                                .sizes = pair(cuuint64_t(k), cuuint64_t(lines)),
                                .strides = {stride},
                                .box = pair(cuuint32_t(depth), cuuint32_t(count))};
  return boxes.describe(result, sm90::promotion_of(stride));
}

// TMA descriptor of an operand. `halves`: each block of a pair copies one half of a tile.
inline Status describe_operand(const Matmul::Matrix& matrix, bool along_k, int64_t lines, int64_t k, int count,
                               bool halves, CUtensorMap* result) {
  return describe_tiles(matrix, along_k, lines, k, halves && along_k ? half_of_lines(count) : count,
                        halves && !along_k ? kTileDepth / 2 : kTileDepth, result);
}

// An instantiation of swap_ab_kernel with its launch parameters, so that the host code is compiled only once.
template <class T>
struct SwapAbKernel {
  void (*kernel)(SwapAbCall<T>, CUtensorMap, CUtensorMap, CUtensorMap);
  int threads, shared_bytes;

  template <class S>
  static SwapAbKernel with() {
    return {swap_ab_kernel<S>, S::kThreads, int(sizeof(typename S::Shared))};
  }

  // Has each tile that SwapAbChoice::of can return.
  template <bool kAlongK>
  static SwapAbKernel of(const SwapAbChoice& tile, bool rows_along_k) {
    const auto is = [&](int columns, int rows) { return tile.columns == columns && tile.rows == rows; };
    if (!rows_along_k) {
      if (is(64, 128)) return with<SwapAb<T, 64, 128, false, kAlongK>>();
      if (is(64, 192)) return with<SwapAb<T, 64, 192, false, kAlongK>>();
      if (is(128, 128)) return with<SwapAb<T, 128, 128, false, kAlongK>>();
      if (is(128, 192)) return with<SwapAb<T, 128, 192, false, kAlongK>>();
      return with<SwapAb<T, 192, 192, false, kAlongK>>();
    }
    if (is(64, 8)) return with<SwapAb<T, 64, 8, true, kAlongK>>();
    if (is(64, 16)) return with<SwapAb<T, 64, 16, true, kAlongK>>();
    if (is(64, 32)) return with<SwapAb<T, 64, 32, true, kAlongK>>();
    if (is(64, 64)) return with<SwapAb<T, 64, 64, true, kAlongK>>();
    if (is(64, 128)) return with<SwapAb<T, 64, 128, true, kAlongK>>();
    if (is(64, 160)) return with<SwapAb<T, 64, 160, true, kAlongK>>();
    if (is(64, 192)) return with<SwapAb<T, 64, 192, true, kAlongK>>();
    if (is(128, 64)) return with<SwapAb<T, 128, 64, true, kAlongK>>();
    if (is(128, 128)) return with<SwapAb<T, 128, 128, true, kAlongK>>();
    if (is(128, 160)) return with<SwapAb<T, 128, 160, true, kAlongK>>();
    if (is(128, 176)) return with<SwapAb<T, 128, 176, true, kAlongK>>();
    if (is(128, 192)) return with<SwapAb<T, 128, 192, true, kAlongK>>();
    if (is(128, 224)) return with<SwapAb<T, 128, 224, true, kAlongK>>();
    if (is(128, 256)) return with<SwapAb<T, 128, 256, true, kAlongK>>();
    if (is(192, 128)) return with<SwapAb<T, 192, 128, true, kAlongK>>();
    if (is(192, 160)) return with<SwapAb<T, 192, 160, true, kAlongK>>();
    if (is(192, 192)) return with<SwapAb<T, 192, 192, true, kAlongK>>();
    if (is(256, 128)) return with<SwapAb<T, 256, 128, true, kAlongK>>();
    return with<SwapAb<T, 256, 160, true, kAlongK>>();
  }
};

template <class T>
Status swap_ab(const Matmul& product, const SwapAbChoice& tile, const Context& context) {
  const bool rows_along_k = !product.a.transposed, along_k = product.b.transposed;
  const auto kernel = along_k ? SwapAbKernel<T>::template of<true>(tile, rows_along_k)
                              : SwapAbKernel<T>::template of<false>(tile, rows_along_k);
  const auto is_pack_aligned = [&](const void* data) {
    return reinterpret_cast<uintptr_t>(data) % (4 * sizeof(T)) == 0;
  };
  const int64_t row_tiles = (product.m + tile.rows - 1) / tile.rows;
  const int64_t column_tiles = (product.n + tile.columns - 1) / tile.columns;
  const bool is_persistent = tile.is_persistent(product);
  int64_t rows = rows_along_k ? (product.m + row_tiles - 1) / row_tiles : std::min<int64_t>(product.m, tile.rows);
  if (row_tiles > 1) rows = (rows + 7) / 8 * 8;  // a TMA store has 8 rows
  const SwapAbCall<T> call = {
      .m = int(product.m),
      .n = int(product.n),
      .k = int(product.k),
      .row_tiles = int(row_tiles),
      .column_tiles = int(column_tiles),
      .rows = int(rows),
      .k_splits = tile.k_splits,
      .sharing = tile.sharing,
      .is_persistent = is_persistent,
      .c = static_cast<T*>(product.c),
      .c_stride = product.c_stride,
      .store_packs = product.n % 4 == 0 && product.c_stride % 4 == 0 && is_pack_aligned(product.c) &&
                     is_pack_aligned(product.epilogue.z),
      .epilogue = ElementEpilogue<T>(product.epilogue),
  };
  const int64_t blocks = row_tiles * column_tiles * tile.k_splits;
  const int64_t most = std::max(device_attribute(cudaDevAttrMultiProcessorCount) / 2 * 2, 2);  // pairs share tiles
  const Grid grid = {.blocks = is_persistent ? std::min(blocks, most) : blocks,
                     .threads = kernel.threads,
                     .shared_bytes = kernel.shared_bytes,
                     .cluster = tile.sharing == Sharing::nothing ? tile.k_splits : 2};
  FUSEDOPS_TRY(allow_shared_memory(kernel.kernel, grid.shared_bytes));
  CUtensorMap tiles_of_a, tiles_of_b, tiles_of_c = {};
  const int row_lines = rows_along_k ? call.rows : kTileLines;
  FUSEDOPS_TRY(describe_operand(product.a, rows_along_k, product.m, product.k, row_lines, tile.sharing == Sharing::rows,
                                &tiles_of_a));
  FUSEDOPS_TRY(describe_operand(product.b, along_k, product.n, product.k, column_lines(along_k, call.n),
                                tile.sharing == Sharing::columns, &tiles_of_b));
  if (is_persistent) {
    const Matmul::Matrix c = {product.c, true, product.c_stride, 0};  // its "lines" are columns, its depth is rows
    FUSEDOPS_TRY(describe_tiles(c, /*along_k=*/false, product.n, product.m, kTileLines, 8, &tiles_of_c));
  }
  return launch(context, kernel.kernel, grid, call, tiles_of_a, tiles_of_b, tiles_of_c);
}

}  // namespace fusedops::cuda
