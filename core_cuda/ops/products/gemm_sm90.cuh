// 16-bit products with large tiles on compute capability 9.x. Reads a and b once per block tile through TMA and
// accumulates with wgmma in float32 over the whole of k; an epilogue gets the sums in registers. Limit: the tensor
// cores.
//
// An epilogue has kStagedBytes, the shared memory of each warp for its stores, and
// operator()(sums, work tile, staged): `sums` are S::Sums of the warpgroup, `staged` is the memory of the warp. Rows
// and columns may lie outside of c. Three functions are optional: prepare(product), on the host, makes TMA descriptors
// of c; one thread calls prefetch_descriptors() at the start, and prefetch(tile) for each work tile of its block. An
// epilogue with a type Loads, of registers, has load(tile, loads), which runs during the last products of the work
// tile, and its operator() gets the loads in place of `staged`.
#pragma once

#include "core/cuda/launch.cuh"
#include "cutlass/arch/reg_reconfig.h"
#include "ops/products/gemm_ring_sm90.cuh"
#include "ops/products/matmul_kernels.h"

namespace fusedops::cuda {

template <int kWeights, class Epilogue>
struct GemmCall {
  CUtensorMap a, b[kWeights];
  Epilogue epilogue;
  TileScheduler scheduler;
  int k;
  bool has_matrices_a, has_matrices_b;
};

// The Loads of an epilogue that has them.
template <class Epilogue>
struct EarlyLoads {};
template <class Epilogue>
  requires requires { typename Epilogue::Loads; }
struct EarlyLoads<Epilogue> : Epilogue::Loads {};

// The block's work tile, from the scheduler's work tile of its cluster.
template <class S>
__forceinline__ __device__ WorkTile work_tile(const TileScheduler& scheduler, int work) {
  const WorkTile tile = scheduler.at(work);  // in cluster tiles
  const int row_tile = tile.row * S::kCluster + int(blockIdx.x) % S::kCluster;
  return {row_tile * S::kRows, tile.column * (S::kColumns / S::kWeights), tile.matrix};
}

template <class S, class Call>
__forceinline__ __device__ void produce(const Call& call, typename S::Shared& shared, int first, int stride) {
  typename S::State state;
#pragma unroll 1
  for (int work = first; work < call.scheduler.count(); work += stride) {
    const WorkTile tile = work_tile<S>(call.scheduler, work);
    copy_tile<S>(call, shared, state, tile);
    if constexpr (requires { call.epilogue.prefetch(tile); }) call.epilogue.prefetch(tile);
  }
  cudaTriggerProgrammaticLaunchCompletion();
}

template <class S, int kWeights, class Epilogue>
__forceinline__ __device__ void consume(const GemmCall<kWeights, Epilogue>& call, typename S::Shared& shared, int first,
                                        int stride, int group) {
  using cutlass::arch::NamedBarrier;
  constexpr bool kLoadsEarly = requires { typename Epilogue::Loads; };
  const int k_tiles = (call.k + S::kDepth - 1) / S::kDepth, warp = threadIdx.x / 32;
  const int row = S::kIsPingPong ? 0 : group * (S::kRows / S::kConsumers);
  char* const staged = shared.staged + warp * S::kStagedBytes;
  typename S::State state;
  typename S::Sums sums;
  [[maybe_unused]] EarlyLoads<Epilogue> loads;
  if (S::kIsPingPong && group == 1) {
    state += k_tiles;
    NamedBarrier::arrive(S::kConsumerThreads, 0u);
  }
#pragma unroll 1
  for (int work = S::kIsPingPong ? first + group * stride : first; work < call.scheduler.count();
       work += S::kIsPingPong ? S::kConsumers * stride : stride) {
    if (S::kIsPingPong) NamedBarrier::sync(S::kConsumerThreads, uint32_t(group));
    WorkTile tile;
    multiply_tile<S>(shared, state, k_tiles, row, sums, [&] {
      if (S::kIsPingPong && work + stride < call.scheduler.count())
        NamedBarrier::arrive(S::kConsumerThreads, uint32_t(1 - group));
      tile = work_tile<S>(call.scheduler, work);
      tile.row += row;
      if constexpr (kLoadsEarly) call.epilogue.load(tile, loads);
    });
    if (S::kIsPingPong) state += k_tiles;
    if constexpr (kLoadsEarly)
      call.epilogue(sums, tile, loads);
    else
      call.epilogue(sums, tile, staged);
  }
  if (S::kStagedBytes > 0) cute::tma_store_wait<0>();
}

template <class S, class Epilogue>
__global__ void __launch_bounds__(S::kThreads, 1)
    gemm_kernel(const __grid_constant__ GemmCall<S::kWeights, Epilogue> call) {
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  // A uniform index keeps the descriptors in uniform registers, where the instructions read them.
  const int group = cutlass::canonical_warp_group_idx();
  const int first = int(blockIdx.x) / S::kCluster, stride = int(gridDim.x) / S::kCluster;
  if (threadIdx.x == 0) {
    shared.ring.init(S::kCluster * (S::kIsPingPong ? 1 : S::kConsumers));
    cutlass::arch::fence_barrier_init();
  }
  if (threadIdx.x == S::kConsumerThreads) {
    cute::prefetch_tma_descriptor(&call.a);
    for (const CUtensorMap& map : call.b) cute::prefetch_tma_descriptor(&map);
    if constexpr (requires { call.epilogue.prefetch_descriptors(); }) call.epilogue.prefetch_descriptors();
  }
  cudaGridDependencySynchronize();
  if constexpr (S::kIsPaired)
    cute::cluster_sync();
  else
    __syncthreads();
  if (group == S::kConsumers) {
    cutlass::arch::warpgroup_reg_dealloc<S::kProducerRegisters>();
    if (threadIdx.x == S::kConsumerThreads) produce<S>(call, shared, first, stride);
    __syncwarp();
  } else {
    cutlass::arch::warpgroup_reg_alloc<S::kConsumerRegisters>();
    consume<S>(call, shared, first, stride, group);
  }
  // A block must not exit while its pair copies into its memory or arrives at its barriers.
  if constexpr (S::kIsPaired) cute::cluster_sync();
}

// False if all products of the batch share one matrix.
inline bool has_matrices(const Matmul& product, const Matmul::Matrix& matrix) {
  return product.batch > 1 && matrix.batch_stride != 0;
}

// TMA descriptor of boxes [count, kTileDepth] of an operand [lines, k].
inline Status describe_lines(const Matmul& product, const Matmul::Matrix& matrix, bool along_k, int64_t lines,
                             int count, CUtensorMap* result) {
  const bool is_batch = has_matrices(product, matrix);
  const auto dimensions = [&](auto k, auto line, auto batch) {
    return std::array{along_k ? k : line, along_k ? line : k, batch};
  };
  const auto stride = cuuint64_t(matrix.stride) * 2, batch_stride = cuuint64_t(matrix.batch_stride) * 2;
  const sm90::Boxes<3> boxes = {
      .data = matrix.data,
      .sizes = dimensions(cuuint64_t(product.k), cuuint64_t(lines), cuuint64_t(is_batch ? product.batch : 1)),
      .strides = {stride, is_batch ? batch_stride : stride},
      .box = dimensions(cuuint32_t(kTileDepth), cuuint32_t(along_k ? count : kTileLines), cuuint32_t(1))};
  return boxes.describe(result, sm90::promotion_of(stride));
}

// `others`: further matrices b, if a tile has columns of several.
template <class T, class Tiles, bool kRowsAlongK, bool kAlongK, class Epilogue, class... Others>
Status launch_gemm(const Matmul& product, const Epilogue& epilogue, const Context& context, const Others&... others) {
  using S = Gemm<T, Tiles, kRowsAlongK, kAlongK, Epilogue::kStagedBytes>;
  static_assert(std::is_trivially_copyable_v<Epilogue> && S::kWeights == 1 + sizeof...(Others));
  const auto kernel = gemm_kernel<S, Epilogue>;
  const auto tiles = [](int64_t size, int of_tile) { return int((size + of_tile - 1) / of_tile); };
  FUSEDOPS_TRY(allow_shared_memory(kernel, int(sizeof(typename S::Shared))));
  GemmCall<S::kWeights, Epilogue> call = {
      .epilogue = epilogue,
      .scheduler = TileScheduler(tiles(product.m, S::kCluster * S::kRows), tiles(product.n, S::kColumns / S::kWeights),
                                 int(product.batch)),
      .k = int(product.k),
      .has_matrices_a = has_matrices(product, product.a),
      .has_matrices_b = has_matrices(product, product.b)};
  if constexpr (requires { call.epilogue.prepare(product); }) FUSEDOPS_TRY(call.epilogue.prepare(product));
  FUSEDOPS_TRY(describe_lines(product, product.a, S::kRowsAlongK, product.m, S::kRows, &call.a));
  int i = 0;
  for (const Matmul::Matrix& b : {product.b, others...})
    FUSEDOPS_TRY(describe_lines(product, b, S::kAlongK, product.n, S::kColumns / S::kCluster, &call.b[i++]));
  const int64_t clusters = std::max(device_attribute(cudaDevAttrMultiProcessorCount) / S::kCluster, 1);
  const Grid grid = {.blocks = std::min<int64_t>(call.scheduler.count(), clusters) * S::kCluster,
                     .threads = S::kThreads,
                     .shared_bytes = int(sizeof(typename S::Shared)),
                     .cluster = S::kCluster};
  return launch(context, kernel, grid, call);
}

}  // namespace fusedops::cuda
