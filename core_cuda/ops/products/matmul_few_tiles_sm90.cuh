// A product of 16 bits whose tiles a GPU computes all at once, or nearly so, on compute capability 9.x: of few rows, as
// in a model that generates text, or of some hundred. Limit: reading the matrix b once, or the tensor cores.
//
// The tensor cores (wgmma) compute 64 of one operand at a time, but any multiple of 8 of the other: the matrix's
// columns take the first place, so that 8 rows cost as much as 8, not as 64. A block has a tile of c, 64 columns for
// each of its warpgroups, and up to eight blocks, a cluster, share the k of a tile: each takes steps of 64 in turn. One
// thread of a block copies tiles of both operands through TMA into a ring in shared memory, the warpgroups multiply
// them; then the blocks add their sums, in the order of their ranks.
//
// So the order of a sum depends on the parts of k alone: with one part, it is that of all other kernels for 9.x.
#pragma once

// Products with any multiple of 8 rows.
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED

#include <cooperative_groups.h>

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

// A tile of kRows rows and 64 columns for each warpgroup. kRowsAlongK and kAlongK: the lines of unit stride of op(a),
// and of op(b), run along k.
template <class T_, class Element_, int kWarpgroups_, int kRows_, bool kRowsAlongK_, bool kAlongK_>
struct FewTiles {
  using T = T_;              // of c
  using Element = Element_;  // the same for CUTLASS
  static constexpr bool kRowsAlongK = kRowsAlongK_, kAlongK = kAlongK_;
  static constexpr int kLines = 64, kDepth = kTileDepth;  // of what a warpgroup's product takes of b
  static constexpr int kRows = kRows_, kWarpgroups = kWarpgroups_, kColumns = kWarpgroups * kLines;
  static constexpr int kConsumers = kWarpgroups * 128, kConsumerWarps = kConsumers / 32, kThreads = kConsumers + 32;
  static constexpr int kStageBytes = (kColumns + kRows) * kDepth * int(sizeof(Element));
  static constexpr int kRoom = (kRows <= 64 ? 112 : 224) << 10;  // of few rows, two blocks fit on a multiprocessor
  static constexpr int kStages = kRoom / kStageBytes;
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
    uint64_t full[kStages], empty[kStages];
  };
  static_assert(offsetof(Shared, full) >= kRows * kSumPitch * sizeof(float));

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

// How TMA copies `count` lines of a matrix [lines, k], kTileDepth of k of each, to where wgmma reads them.
template <class Element, bool kAlongK>
Status describe_tiles(const Matmul::Matrix& matrix, int64_t lines, int64_t k, int count, cute::TmaDescriptor* result) {
  const auto pair = [](auto along_k, auto across) {
    return std::array{kAlongK ? along_k : across, kAlongK ? across : along_k};
  };
  const auto sizes = pair(cuuint64_t(k), cuuint64_t(lines));
  const auto box = pair(cuuint32_t(kTileDepth), cuuint32_t(count));
  const cuuint32_t every[2] = {1, 1};
  const cuuint64_t stride = matrix.stride * sizeof(Element);
  const CUresult error = CUTLASS_CUDA_DRIVER_WRAPPER_CALL(cuTensorMapEncodeTiled)(
      result, cute::TMA::to_CUtensorMapDataType<Element>(), 2, const_cast<void*>(matrix.data), sizes.data(), &stride,
      box.data(), every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (error == CUDA_SUCCESS) return {};
  return Status::error("fusedops: cuTensorMapEncodeTiled failed with error ", std::to_string(int(error)));
}

template <class T>
struct FewTilesCall {
  int m, n, k;
  int row_tiles, rows;  // a tile has kRows of them at most: those of c are shared out evenly
  int parts;            // of k
  T* c;
  int64_t c_stride;
  bool store_packs;  // four neighbours in one access
  ElementEpilogue<T> epilogue;
};

// A block's tile and its part of k. The parts of a tile are a cluster; tiles that share columns are neighbours. The
// last tile of rows, or of columns, ends where c does and begins within the one before, which computes and writes the
// same values there: to copy lines behind the end of a matrix, as zeros, would take longer.
template <class S>
struct FewTilesPlace {
  int row, column;  // the first of the tile
  int part, parts;

  __device__ explicit FewTilesPlace(const FewTilesCall<typename S::T>& call)
      : part(blockIdx.x % call.parts), parts(call.parts) {
    const int tile = blockIdx.x / parts;
    row = min(tile % call.row_tiles * call.rows, call.m - call.rows);
    column = max(min(tile / call.row_tiles * S::kColumns, call.n - S::kColumns), 0);
  }
  __device__ int steps(int k) const { return ((k + S::kDepth - 1) / S::kDepth - part + parts - 1) / parts; }
  __device__ int first_of(int step) const { return (part + step * parts) * S::kDepth; }
};

template <bool kAlongK>
__device__ void copy_lines(const cute::TmaDescriptor& tiles, uint64_t* barrier, void* to, int line, int k) {
  constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  cute::SM90_TMA_LOAD_2D::copy(&tiles, barrier, kHint, to, kAlongK ? k : line, kAlongK ? line : k);
}

// One thread: copies the tiles of all steps into the ring. Rows behind those of a tile, and columns behind those of c,
// are what was there before: what is multiplied with them is not written.
template <class S>
__device__ void copy_tiles(typename S::Shared& shared, int count, const FewTilesCall<typename S::T>& call,
                           const FewTilesPlace<S>& place, const cute::TmaDescriptor& tiles_of_a,
                           const cute::TmaDescriptor& tiles_of_b) {
  const int rows = S::kRowsAlongK ? call.rows : (call.rows + S::kLines - 1) / S::kLines * S::kLines;
  const int lines = S::kColumns / S::kLines * S::column_lines(call.n) + rows;
  const int bytes = lines * S::kDepth * int(sizeof(typename S::Element));
  for (int i = 0; i < count; ++i) {
    const int stage = i % S::kStages, turn = i / S::kStages, k = place.first_of(i);
    uint64_t* const full = &shared.full[stage];
    if (turn > 0) cutlass::arch::ClusterBarrier::wait(&shared.empty[stage], (turn - 1) % 2);
    cutlass::arch::ClusterTransactionBarrier::arrive_and_expect_tx(full, bytes);
#pragma unroll
    for (int line = 0; line < S::kColumns; line += S::kLines)
      copy_lines<S::kAlongK>(tiles_of_b, full, shared.matrix + (stage * S::kColumns + line) * S::kDepth,
                             place.column + line, k);
#pragma unroll
    for (int line = 0; line < S::kRows; line += S::kRowLines)
      if (line < rows)
        copy_lines<S::kRowsAlongK>(tiles_of_a, full, shared.rows + (stage * S::kRows + line) * S::kDepth,
                                   place.row + line, k);
  }
}

// The warpgroups' products of all tiles in the ring.
template <class S, class Sums>
__forceinline__ __device__ void multiply_tiles(typename S::Shared& shared, int count, const typename S::Mma& mma,
                                               Sums& sums) {
  using namespace cute;
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  const ThrMMA of_thread = mma.get_thread_slice(threadIdx.x);
  const Tensor matrix = of_thread.make_fragment_A(
      of_thread.partition_A(make_tensor(make_smem_ptr(shared.matrix), typename S::MatrixRing())));
  const Tensor rows =
      of_thread.make_fragment_B(of_thread.partition_B(make_tensor(make_smem_ptr(shared.rows), typename S::RowRing())));
  warpgroup_fence_operand(sums);
  for (int i = 0; i < count; ++i) {
    const int stage = i % S::kStages;
    Full::wait(&shared.full[stage], i / S::kStages % 2);
    warpgroup_arrive();
    gemm(mma, matrix(_, _, _, stage), rows(_, _, _, stage), sums);
    warpgroup_commit_batch();
    warpgroup_wait<1>();  // the tile before this one is read
    if (i > 0 && threadIdx.x % 32 == 0) Empty::arrive(&shared.empty[(i - 1) % S::kStages]);
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(sums);
}

// c from the sums of all parts; kAlone: there is one. A consumer has four neighbouring columns, and the rows of its
// part's turn.
template <class S, bool kAlone>
__device__ void finish_tile(const float* all, const FewTilesCall<typename S::T>& call, const FewTilesPlace<S>& place) {
  using T = typename S::T;
  constexpr int kPack = 4, kPacks = S::kColumns / kPack, kRowsAtOnce = S::kConsumers / kPacks;
  constexpr int kParts = kAlone ? 1 : kMostParts;
  struct alignas(kPack * sizeof(T)) Pack {
    T values[kPack];
  };
  const int in_tile = threadIdx.x % kPacks * kPack, column = place.column + in_tile;
  if (column >= call.n) return;
  float bias[kPack] = {};
  if (call.epilogue.bias)
#pragma unroll
    for (int j = 0; j < kPack; ++j)
      if (column + j < call.n) bias[j] = to_compute(call.epilogue.bias[column + j]);
  const float* of_parts[kParts] = {all + in_tile};
  if constexpr (!kAlone)
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      if (part < call.parts) of_parts[part] = cooperative_groups::this_cluster().map_shared_rank(all + in_tile, part);
  // One branch around all sums: for each of them, it would take longer than all else here.
  activations::dispatch(call.epilogue.activation, [&](auto chosen) {
#pragma unroll 4
    for (int row = place.part * kRowsAtOnce + threadIdx.x / kPacks; row < call.rows; row += call.parts * kRowsAtOnce) {
      float4 parts[kParts];
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        if (kAlone || part < call.parts)
          parts[part] = *reinterpret_cast<const float4*>(of_parts[part] + row * S::kSumPitch);
      float sums[kPack] = {};
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        if (kAlone || part < call.parts) {
          sums[0] += parts[part].x;
          sums[1] += parts[part].y;
          sums[2] += parts[part].z;
          sums[3] += parts[part].w;
        }
      const int64_t at = int64_t(place.row + row) * call.c_stride + column;
      const auto store = [&](T* to) {
        Pack pack;
#pragma unroll
        for (int j = 0; j < kPack; ++j) pack.values[j] = from_compute<T>(sums[j]);
        if (call.store_packs)
          *reinterpret_cast<Pack*>(to + at) = pack;
        else
#pragma unroll
          for (int j = 0; j < kPack; ++j)
            if (column + j < call.n) to[at + j] = pack.values[j];
      };
      if (call.epilogue.z) store(call.epilogue.z);
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        if (call.epilogue.bias) sums[j] += bias[j];
        sums[j] = decltype(chosen)::at(sums[j]).value;
      }
      store(call.c);
    }
  });
}

template <class S>
__global__ void __launch_bounds__(S::kThreads)
    few_tiles_kernel(const FewTilesCall<typename S::T> call, CUTE_GRID_CONSTANT const cute::TmaDescriptor tiles_of_a,
                     CUTE_GRID_CONSTANT const cute::TmaDescriptor tiles_of_b) {
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  const int warp = cutlass::canonical_warp_idx_sync(), lane = threadIdx.x % 32;
  const bool consumes = warp < S::kConsumerWarps;
  const FewTilesPlace<S> place(call);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < S::kStages; ++stage) {
      cutlass::arch::ClusterTransactionBarrier::init(&shared.full[stage], 1);
      cutlass::arch::ClusterBarrier::init(&shared.empty[stage], S::kConsumerWarps);
    }
    cutlass::arch::fence_barrier_init();
  }
  if (threadIdx.x == S::kConsumers) {
    cute::prefetch_tma_descriptor(&tiles_of_a);
    cute::prefetch_tma_descriptor(&tiles_of_b);
  }
  cudaGridDependencySynchronize();
  __syncthreads();

  float* const all = reinterpret_cast<float*>(memory);
  const int count = place.steps(call.k);
  if (consumes) {
    const typename S::Mma mma;
    auto sums = cute::partition_fragment_C(mma, cute::Shape<cute::Int<S::kColumns>, cute::Int<S::kRows>>());
    cute::clear(sums);
    multiply_tiles<S>(shared, count, mma, sums);
    __syncthreads();  // no one reads the ring any more
    // Of 16 columns for each warp, and of each 8 rows, a thread holds the sums of two rows, in one column and in that 8
    // further.
#pragma unroll
    for (int i = 0; i < int(cute::size(sums)); ++i) {
      const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, column = warp * 16 + lane / 4 + i / 2 % 2 * 8;
      all[row * S::kSumPitch + column] = sums(i);
    }
  } else {
    if (lane == 0) copy_tiles<S>(shared, count, call, place, tiles_of_a, tiles_of_b);
    __syncwarp();
    // Only now may the next kernel start, or at the end if some multiprocessors have two blocks of this one: what
    // starts beside them is not dealt evenly.
    if (gridDim.x <= kMultiprocessors) cudaTriggerProgrammaticLaunchCompletion();
    __syncthreads();
  }
  if (call.parts == 1) {
    __syncthreads();
    if (consumes) finish_tile<S, /*kAlone=*/true>(all, call, place);
    return;
  }
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  if (consumes) finish_tile<S, /*kAlone=*/false>(all, call, place);
  cluster.sync();  // no one leaves whose sums are being read
}

template <class S>
Status launch_few_tiles(const Matmul& product, int parts, const Context& context) {
  using T = typename S::T;
  const auto takes_packs = [&](const void* data) { return reinterpret_cast<uintptr_t>(data) % (4 * sizeof(T)) == 0; };
  const int64_t row_tiles = (product.m + S::kRows - 1) / S::kRows;
  const int64_t column_tiles = (product.n + S::kColumns - 1) / S::kColumns;
  const FewTilesCall<T> call = {
      .m = int(product.m),
      .n = int(product.n),
      .k = int(product.k),
      .row_tiles = int(row_tiles),
      .rows = int(S::kRowsAlongK ? (product.m + row_tiles - 1) / row_tiles : std::min<int64_t>(product.m, S::kRows)),
      .parts = parts,
      .c = static_cast<T*>(product.c),
      .c_stride = product.c_stride,
      .store_packs =
          product.n % 4 == 0 && product.c_stride % 4 == 0 && takes_packs(product.c) && takes_packs(product.epilogue.z),
      .epilogue = ElementEpilogue<T>(product.epilogue),
  };
  const Grid grid = {.blocks = row_tiles * column_tiles * parts,
                     .threads = S::kThreads,
                     .shared_bytes = int(sizeof(typename S::Shared)),
                     .cluster = parts};
  // Also makes the GPU's context that of this thread: tiles cannot be described for TMA without one.
  FUSEDOPS_TRY(allow_shared_memory(few_tiles_kernel<S>, grid.shared_bytes));
  cute::TmaDescriptor tiles_of_a, tiles_of_b;
  const int row_lines = S::kRowsAlongK ? call.rows : S::kLines, column_lines = S::column_lines(call.n);
  FUSEDOPS_TRY(
      (describe_tiles<typename S::Element, S::kRowsAlongK>(product.a, product.m, product.k, row_lines, &tiles_of_a)));
  FUSEDOPS_TRY(
      (describe_tiles<typename S::Element, S::kAlongK>(product.b, product.n, product.k, column_lines, &tiles_of_b)));
  return launch(context, few_tiles_kernel<S>, grid, call, tiles_of_a, tiles_of_b);
}

template <class T, class Element, int kWarpgroups, int kRows, bool kRowsAlongK = true>
Status launch_few_tiles(const Matmul& product, int parts, const Context& context) {
  return product.b.transposed
             ? launch_few_tiles<FewTiles<T, Element, kWarpgroups, kRows, kRowsAlongK, true>>(product, parts, context)
             : launch_few_tiles<FewTiles<T, Element, kWarpgroups, kRows, kRowsAlongK, false>>(product, parts, context);
}

// The kernel of a tile that FewTilesChoice::of knows.
template <class T, class Element>
Status few_tiles(const Matmul& product, const FewTilesChoice& tile, const Context& context) {
  const auto with = [&]<int kColumns, int kRows, bool kRowsAlongK = true>() {
    return launch_few_tiles<T, Element, kColumns / 64, kRows, kRowsAlongK>(product, tile.parts, context);
  };
  if (product.a.transposed) {
    if (tile.columns == 64)
      return tile.rows == 128 ? with.template operator()<64, 128, false>() : with.template operator()<64, 192, false>();
    return tile.rows == 128 ? with.template operator()<128, 128, false>() : with.template operator()<128, 192, false>();
  }
  if (tile.columns == 128) {
    if (tile.rows == 128) return with.template operator()<128, 128>();
    if (tile.rows == 160) return with.template operator()<128, 160>();
    return tile.rows == 192 ? with.template operator()<128, 192>() : with.template operator()<128, 256>();
  }
  switch (tile.rows) {
    case 8:
      return with.template operator()<64, 8>();
    case 16:
      return with.template operator()<64, 16>();
    case 32:
      return with.template operator()<64, 32>();
    case 64:
      return with.template operator()<64, 64>();
    case 128:
      return with.template operator()<64, 128>();
    case 160:
      return with.template operator()<64, 160>();
    default:
      return with.template operator()<64, 192>();
  }
}

}  // namespace fusedops::cuda
