// A product of 16 bits whose tiles a GPU computes all at once, or in some waves, on compute capability 9.x: of few
// rows, as in a model that generates text, or of some thousand. Limit: reading the matrix b once, the L2 cache, or the
// tensor cores.
//
// The tensor cores (wgmma) compute 64 of one operand at a time, but any multiple of 8 of the other: the matrix's
// columns take the first place, so that 8 rows cost as much as 8, not as 64. A block has a tile of c, 64 columns or 128
// for each of its warpgroups, and up to eight blocks, a cluster, share the k of a tile: each takes steps of 64 in turn.
// One thread of a block copies tiles of both operands through TMA into a ring in shared memory, the warpgroups multiply
// them; then the blocks add their sums, in the order of their ranks.
//
// If k is not shared, and there is no epilogue but a bias, a block goes on to another tile, which is copied while it
// writes the one before. And two blocks may be a cluster that reads the tile of b, or of a, that they share only once.
//
// So the order of a sum depends on the parts of k alone: with one part, it is that of all other kernels for 9.x.
#pragma once

#include "cutlass/arch/reg_reconfig.h"
#include "ops/products/few_tiles_store_sm90.cuh"

namespace fusedops::cuda {

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    few_tiles_kernel(const FewTilesCall<typename S::T> call, CUTE_GRID_CONSTANT const cute::TmaDescriptor tiles_of_a,
                     CUTE_GRID_CONSTANT const cute::TmaDescriptor tiles_of_b,
                     CUTE_GRID_CONSTANT const cute::TmaDescriptor tiles_of_c) {
  using cutlass::arch::NamedBarrier;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  const bool consumes = cutlass::canonical_warp_idx_sync() < S::kConsumerWarps;
  FewTilesPlace<S> place(call);  // its divisions take a third of a microsecond: before the wait
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < S::kStages; ++stage) {
      cutlass::arch::ClusterTransactionBarrier::init(&shared.full[stage], 1);
      cutlass::arch::ClusterBarrier::init(&shared.empty[stage], S::kConsumerWarps * (call.shares() ? 2 : 1));
    }
    cutlass::arch::fence_barrier_init();
  }
  if (threadIdx.x == S::kConsumers) {
    cute::prefetch_tma_descriptor(&tiles_of_a);
    cute::prefetch_tma_descriptor(&tiles_of_b);
  }
  cudaGridDependencySynchronize();
  if (call.shares())
    cute::cluster_sync();
  else
    __syncthreads();

  float* const all = reinterpret_cast<float*>(memory);
  const bool alone = call.parts == 1;
  int step = 0;  // of those of all tiles
  // Nothing follows what the two kinds of warps do: else they would have registers in the same number.
  if (consumes) {
    if constexpr (S::kTakesRegisters) cutlass::arch::warpgroup_reg_alloc<232>();
    const typename S::Mma mma;
    auto sums = cute::partition_fragment_C(mma, cute::Shape<cute::Int<S::kColumns>, cute::Int<S::kRows>>());
    place.for_each([&] {
      multiply_tiles<S>(shared, &step, place, mma, sums);
      if constexpr (S::kCanStay)
        if (call.stays) store_tile<S>(shared, sums, place, tiles_of_c);
    });
    if (call.stays) {
      cute::tma_store_wait<0>();
    } else {
      NamedBarrier::sync(S::kConsumers, 0u);
      spread_sums<S>(all, sums);
      if (alone) {
        NamedBarrier::sync(S::kConsumers, 0u);
        finish_tile<S, /*kAlone=*/true>(all, place);
      } else {
        cute::cluster_sync();
        finish_tile<S, /*kAlone=*/false>(all, place);
      }
    }
  } else {
    if constexpr (S::kTakesRegisters) cutlass::arch::warpgroup_reg_dealloc<40>();
    if (threadIdx.x == S::kConsumers)
      place.for_each([&] { copy_tiles<S>(shared, &step, place, tiles_of_a, tiles_of_b); });
    __syncwarp();
    // Only now may the next kernel start, or at the end if some multiprocessors have two blocks of this one: what
    // starts beside them is not dealt evenly.
    if (gridDim.x <= kMultiprocessors) cudaTriggerProgrammaticLaunchCompletion();
    if (!alone) cute::cluster_sync();
  }
  // No one leaves whose sums are being read, or into whose memory a pair copies.
  if (!alone || call.shares()) cute::cluster_sync();
}

template <class S>
Status launch_few_tiles(const Matmul& product, const FewTilesChoice& tile, const Context& context) {
  using T = typename S::T;
  using Element = typename S::Element;
  const auto takes_packs = [&](const void* data) { return reinterpret_cast<uintptr_t>(data) % (4 * sizeof(T)) == 0; };
  const int64_t row_tiles = (product.m + S::kRows - 1) / S::kRows;
  const int64_t column_tiles = (product.n + S::kColumns - 1) / S::kColumns;
  const bool stays = tile.stays(product);
  int64_t rows = S::kRowsAlongK ? (product.m + row_tiles - 1) / row_tiles : std::min<int64_t>(product.m, S::kRows);
  if (row_tiles > 1) rows = (rows + 7) / 8 * 8;  // what TMA writes at once
  const FewTilesCall<T> call = {
      .m = int(product.m),
      .n = int(product.n),
      .k = int(product.k),
      .row_tiles = int(row_tiles),
      .column_tiles = int(column_tiles),
      .rows = int(rows),
      .parts = tile.parts,
      .sharing = tile.sharing,
      .stays = stays,
      .c = static_cast<T*>(product.c),
      .c_stride = product.c_stride,
      .store_packs =
          product.n % 4 == 0 && product.c_stride % 4 == 0 && takes_packs(product.c) && takes_packs(product.epilogue.z),
      .epilogue = ElementEpilogue<T>(product.epilogue),
  };
  const int64_t blocks = row_tiles * column_tiles * tile.parts;
  const int64_t most = device_attribute(cudaDevAttrMultiProcessorCount) / 2 * 2;  // pairs, if tiles are shared
  const Grid grid = {.blocks = stays ? std::min(blocks, most) : blocks,
                     .threads = S::kThreads,
                     .shared_bytes = int(sizeof(typename S::Shared)),
                     .cluster = tile.sharing == Sharing::nothing ? tile.parts : 2};
  // Also makes the GPU's context that of this thread: tiles cannot be described for TMA without one.
  FUSEDOPS_TRY(allow_shared_memory(few_tiles_kernel<S>, grid.shared_bytes));
  cute::TmaDescriptor tiles_of_a, tiles_of_b, tiles_of_c = {};
  const int row_lines = S::kRowsAlongK ? call.rows : S::kLines, column_lines = S::column_lines(call.n);
  FUSEDOPS_TRY((describe_operand<Element, S::kRowsAlongK>(product.a, product.m, product.k, row_lines,
                                                          tile.sharing == Sharing::rows, &tiles_of_a)));
  FUSEDOPS_TRY((describe_operand<Element, S::kAlongK>(product.b, product.n, product.k, column_lines,
                                                      tile.sharing == Sharing::columns, &tiles_of_b)));
  if (stays) {
    const Matmul::Matrix c = {product.c, true, product.c_stride, 0};  // its "lines" are columns, its depth rows
    FUSEDOPS_TRY((describe_tiles<Element, false>(c, product.n, product.m, S::kLines, 8, &tiles_of_c)));
  }
  return launch(context, few_tiles_kernel<S>, grid, call, tiles_of_a, tiles_of_b, tiles_of_c);
}

// The kernel of a tile that FewTilesChoice::of knows.
template <class T, class Element>
Status few_tiles(const Matmul& product, const FewTilesChoice& tile, const Context& context) {
  const auto with = [&]<int kColumns, int kRows, bool kRowsAlongK = true>() {
    return product.b.transposed
               ? launch_few_tiles<FewTiles<T, Element, kColumns, kRows, kRowsAlongK, true>>(product, tile, context)
               : launch_few_tiles<FewTiles<T, Element, kColumns, kRows, kRowsAlongK, false>>(product, tile, context);
  };
  const auto is = [&](int columns, int rows) { return tile.columns == columns && tile.rows == rows; };
  if (product.a.transposed) {
    if (is(64, 128)) return with.template operator()<64, 128, false>();
    if (is(64, 192)) return with.template operator()<64, 192, false>();
    if (is(128, 128)) return with.template operator()<128, 128, false>();
    if (is(128, 192)) return with.template operator()<128, 192, false>();
    return with.template operator()<192, 192, false>();
  }
  if (is(64, 8)) return with.template operator()<64, 8>();
  if (is(64, 16)) return with.template operator()<64, 16>();
  if (is(64, 32)) return with.template operator()<64, 32>();
  if (is(64, 64)) return with.template operator()<64, 64>();
  if (is(64, 128)) return with.template operator()<64, 128>();
  if (is(64, 160)) return with.template operator()<64, 160>();
  if (is(64, 192)) return with.template operator()<64, 192>();
  if (is(128, 64)) return with.template operator()<128, 64>();
  if (is(128, 128)) return with.template operator()<128, 128>();
  if (is(128, 160)) return with.template operator()<128, 160>();
  if (is(128, 176)) return with.template operator()<128, 176>();
  if (is(128, 192)) return with.template operator()<128, 192>();
  if (is(128, 224)) return with.template operator()<128, 224>();
  if (is(128, 256)) return with.template operator()<128, 256>();
  if (is(192, 128)) return with.template operator()<192, 128>();
  if (is(192, 160)) return with.template operator()<192, 160>();
  if (is(192, 192)) return with.template operator()<192, 192>();
  return is(256, 128) ? with.template operator()<256, 128>() : with.template operator()<256, 160>();
}

}  // namespace fusedops::cuda
