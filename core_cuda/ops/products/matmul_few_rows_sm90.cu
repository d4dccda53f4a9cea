// A product of at most 64 rows of 16-bit elements with a matrix, on compute capability 9.x: a layer of a model that
// generates text, whose weight the matrix is. Limit: reading the matrix once.
//
// The tensor cores (wgmma) compute 64 of one operand at a time, but any multiple of 8 of the other: the matrix's
// columns take the first place, so that 8 rows cost as much as 8, not as 64. A block has 64 columns, and up to four
// blocks, a cluster, share their k: each takes steps of 64 in turn. One thread of a block copies tiles through TMA into
// a ring in shared memory, a warpgroup multiplies them; then the blocks add their sums, in the order of their ranks.
//
// So the order of a sum depends on n and k alone: a row's bits depend neither on the number of rows nor on the others.
#include <cooperative_groups.h>

#include "core/cuda/launch.cuh"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/numeric_types.h"
#include "ops/products/epilogue.cuh"
#include "ops/products/matmul_paths.h"

namespace fusedops::cuda {
namespace {

constexpr int kColumns = 64, kDepth = 64;  // of a tile
constexpr int kConsumers = 128, kConsumerWarps = kConsumers / 32, kBlockThreads = kConsumers + 32;
constexpr int kMostParts = 4;            // of k
constexpr int kMultiprocessors = 132;    // of a large GPU: the order of sums does not follow the GPU at hand
constexpr int kSumPitch = kColumns + 4;  // keeps a warp's sums in different banks

// The product of up to kRows rows; kAlongK: op(b)'s lines of unit stride run along k.
template <class T_, class Element_, int kRows_, bool kAlongK_>
struct FewRows {
  using T = T_;              // of c
  using Element = Element_;  // the same for CUTLASS
  static constexpr int kRows = kRows_;
  static constexpr bool kAlongK = kAlongK_;
  static constexpr int kStageBytes = (kColumns + kRows) * kDepth * int(sizeof(Element));
  static constexpr int kStages = (112 << 10) / kStageBytes;  // so that two blocks fit on a multiprocessor

  // Where the elements of a tile, and of all tiles of the ring, are in shared memory.
  template <class Atom, int kLines>
  using Tile = decltype(cute::tile_to_shape(Atom(), cute::Shape<cute::Int<kLines>, cute::Int<kDepth>>()));
  template <class Atom, int kLines>
  using Ring =
      decltype(cute::tile_to_shape(Atom(), cute::Shape<cute::Int<kLines>, cute::Int<kDepth>, cute::Int<kStages>>()));
  using RowAtom = cute::GMMA::Layout_K_SW128_Atom<Element>;
  using MatrixAtom = std::conditional_t<kAlongK, RowAtom, cute::GMMA::Layout_MN_SW128_Atom<Element>>;
  using RowRing = Ring<RowAtom, kRows>;
  using MatrixRing = Ring<MatrixAtom, kColumns>;

  struct Shared {
    alignas(1024) Element matrix[cute::cosize_v<MatrixRing>];
    alignas(1024) Element rows[cute::cosize_v<RowRing>];
    uint64_t full[kStages], empty[kStages];
  };
  static_assert(sizeof(Shared::matrix) >= kRows * kSumPitch * sizeof(float));

  using Mma = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<Element, Element, float,
                                 cute::Shape<cute::Int<kColumns>, cute::Int<kRows>, cute::Int<kDepth>>,
                                 kAlongK ? cute::GMMA::Major::K : cute::GMMA::Major::MN, cute::GMMA::Major::K>()));

  // How TMA copies tiles of a matrix [lines, k].
  template <class Atom, int kLines, class Stride>
  static auto tma(const void* data, int64_t lines, int64_t k, const Stride& stride) {
    const auto tensor = cute::make_tensor(cute::make_gmem_ptr(static_cast<const Element*>(data)),
                                          cute::make_shape(int(lines), int(k)), stride);
    return cute::make_tma_atom(cute::SM90_TMA_LOAD(), tensor, Tile<Atom, kLines>(),
                               cute::Shape<cute::Int<kLines>, cute::Int<kDepth>>());
  }
  static auto tma_of_rows(const void* data, int64_t m, int64_t k, int64_t stride) {
    return tma<RowAtom, kRows>(data, m, k, cute::make_stride(stride, cute::_1()));
  }
  static auto tma_of_matrix(const void* data, int64_t n, int64_t k, int64_t stride) {
    if constexpr (kAlongK)
      return tma<MatrixAtom, kColumns>(data, n, k, cute::make_stride(stride, cute::_1()));
    else
      return tma<MatrixAtom, kColumns>(data, n, k, cute::make_stride(cute::_1(), stride));
  }
  using RowTma = decltype(tma_of_rows(nullptr, 0, 0, 0));
  using MatrixTma = decltype(tma_of_matrix(nullptr, 0, 0, 0));
};

template <class T>
struct FewRowsCall {
  int m, n, k;
  int parts;  // of k
  T* c;
  int64_t c_stride;
  bool store_packs;  // four neighbours in one access
  ElementEpilogue<T> epilogue;
};

// A block's tile of columns and its part of k. The parts of a tile are a cluster.
struct Place {
  int tile, part, parts;

  __device__ explicit Place(int parts) : tile(blockIdx.x / parts), part(blockIdx.x % parts), parts(parts) {}
  __device__ int steps(int k) const { return ((k + kDepth - 1) / kDepth - part + parts - 1) / parts; }
  __device__ int step(int i) const { return part + i * parts; }
};

// One thread: copies the tiles of all steps into the ring.
template <class S, class RowTma, class MatrixTma>
__device__ void copy_tiles(typename S::Shared& shared, const FewRowsCall<typename S::T>& call, const Place& place,
                           const RowTma& row_tma, const MatrixTma& matrix_tma) {
  using namespace cute;
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  const auto tiles_of = [&](const auto& tma, auto lines, int size, int index) {
    return local_tile(tma.get_tma_tensor(make_shape(size, call.k)), make_shape(lines, Int<kDepth>()),
                      make_coord(index, _));
  };
  const auto partition = [&](const auto& tma, const auto& ring, const auto& tiles) {
    return tma_partition(tma, _0(), cute::Layout<_1>(), group_modes<0, 2>(ring), group_modes<0, 2>(tiles));
  };
  const auto [matrix_from, matrix_to] =
      partition(matrix_tma, make_tensor(make_smem_ptr(shared.matrix), typename S::MatrixRing()),
                tiles_of(matrix_tma, Int<kColumns>(), call.n, place.tile));
  const auto [rows_from, rows_to] = partition(row_tma, make_tensor(make_smem_ptr(shared.rows), typename S::RowRing()),
                                              tiles_of(row_tma, Int<S::kRows>(), call.m, 0));
  const int count = place.steps(call.k);
  for (int i = 0; i < count; ++i) {
    const int stage = i % S::kStages, turn = i / S::kStages;
    if (turn > 0) Empty::wait(&shared.empty[stage], (turn - 1) % 2);
    Full::arrive_and_expect_tx(&shared.full[stage], S::kStageBytes);
    copy(matrix_tma.with(shared.full[stage]), matrix_from(_, place.step(i)), matrix_to(_, stage));
    copy(row_tma.with(shared.full[stage]), rows_from(_, place.step(i)), rows_to(_, stage));
  }
}

// The warpgroup's products of all tiles in the ring.
template <class S, class Sums>
__device__ void multiply_tiles(typename S::Shared& shared, int count, const typename S::Mma& mma, Sums& sums) {
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

// c from the sums of all parts.
template <class S>
__device__ void finish_tile(const float* all, const FewRowsCall<typename S::T>& call, const Place& place) {
  using T = typename S::T;
  constexpr int kPack = 4, kPacks = kColumns / kPack;
  struct alignas(kPack * sizeof(T)) Pack {
    T values[kPack];
  };
  const auto cluster = cooperative_groups::this_cluster();
  // One branch around all sums: for each of them, it would take longer than all else here.
  activations::dispatch(call.epilogue.activation, [&](auto chosen) {
#pragma unroll 2
    for (int i = place.part * kBlockThreads + threadIdx.x; i < call.m * kPacks; i += call.parts * kBlockThreads) {
      const int row = i / kPacks, in_tile = i % kPacks * kPack, column = place.tile * kColumns + in_tile;
      if (column >= call.n) continue;
      float4 of_parts[kMostParts];
#pragma unroll
      for (int part = 0; part < kMostParts; ++part)
        if (part < call.parts)
          of_parts[part] =
              *reinterpret_cast<const float4*>(cluster.map_shared_rank(all + row * kSumPitch + in_tile, part));
      float sums[kPack] = {};
#pragma unroll
      for (int part = 0; part < kMostParts; ++part)
        if (part < call.parts) {
          sums[0] += of_parts[part].x;
          sums[1] += of_parts[part].y;
          sums[2] += of_parts[part].z;
          sums[3] += of_parts[part].w;
        }
      const int64_t at = row * call.c_stride + column;
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
        if (call.epilogue.bias && column + j < call.n) sums[j] += to_compute(call.epilogue.bias[column + j]);
        sums[j] = decltype(chosen)::at(sums[j]).value;
      }
      store(call.c);
    }
  });
}

template <class S>
__global__ void __launch_bounds__(kBlockThreads)
    few_rows_kernel(const FewRowsCall<typename S::T> call, CUTE_GRID_CONSTANT const typename S::RowTma row_tma,
                    CUTE_GRID_CONSTANT const typename S::MatrixTma matrix_tma) {
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  const int warp = cutlass::canonical_warp_idx_sync(), lane = threadIdx.x % 32;
  const Place place(call.parts);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < S::kStages; ++stage) {
      cutlass::arch::ClusterTransactionBarrier::init(&shared.full[stage], 1);
      cutlass::arch::ClusterBarrier::init(&shared.empty[stage], kConsumerWarps);
    }
    cutlass::arch::fence_barrier_init();
  }
  if (threadIdx.x == kConsumers) {
    cute::prefetch_tma_descriptor(row_tma.get_tma_descriptor());
    cute::prefetch_tma_descriptor(matrix_tma.get_tma_descriptor());
  }
  cudaGridDependencySynchronize();
  __syncthreads();

  float* const all = reinterpret_cast<float*>(shared.matrix);
  if (warp == kConsumerWarps) {
    if (lane == 0) copy_tiles<S>(shared, call, place, row_tma, matrix_tma);
    __syncwarp();
    // Only now may the next kernel start, or at the end if some multiprocessors have two blocks of this one: what
    // starts beside them is not dealt evenly.
    if (gridDim.x <= kMultiprocessors) cudaTriggerProgrammaticLaunchCompletion();
    __syncthreads();
  } else {
    const typename S::Mma mma;
    auto sums = cute::partition_fragment_C(mma, cute::Shape<cute::Int<kColumns>, cute::Int<S::kRows>>());
    cute::clear(sums);
    multiply_tiles<S>(shared, place.steps(call.k), mma, sums);
    __syncthreads();  // no one reads the ring any more
    // Of 16 columns for each warp, and of each 8 rows, a thread holds the sums of two rows, in one column and in that 8
    // further.
#pragma unroll
    for (int i = 0; i < int(cute::size(sums)); ++i) {
      const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, column = warp * 16 + lane / 4 + i / 2 % 2 * 8;
      all[row * kSumPitch + column] = sums(i);
    }
  }
  if (call.parts == 1) {
    __syncthreads();
    finish_tile<S>(all, call, place);
    return;
  }
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  finish_tile<S>(all, call, place);
  cluster.sync();  // no one leaves whose sums are being read
}

// Parts of k: so many that there are about as many blocks as multiprocessors, with some steps for each.
int parts_of(int64_t n, int64_t k) {
  constexpr int64_t kLeastDepth = 4 * kDepth;
  const int64_t tiles = (n + kColumns - 1) / kColumns;
  int parts = 1;
  while (parts < kMostParts && tiles * parts * 2 <= kMultiprocessors && k >= parts * 2 * kLeastDepth) parts *= 2;
  return parts;
}

template <class S>
Status launch_few_rows(const Matmul& product, const Context& context) {
  using T = typename S::T;
  const int parts = parts_of(product.n, product.k);
  const auto takes_packs = [&](const void* data) { return reinterpret_cast<uintptr_t>(data) % (4 * sizeof(T)) == 0; };
  const FewRowsCall<T> call = {
      .m = int(product.m),
      .n = int(product.n),
      .k = int(product.k),
      .parts = parts,
      .c = static_cast<T*>(product.c),
      .c_stride = product.c_stride,
      .store_packs =
          product.n % 4 == 0 && product.c_stride % 4 == 0 && takes_packs(product.c) && takes_packs(product.epilogue.z),
      .epilogue = ElementEpilogue<T>(product.epilogue),
  };
  const Grid grid = {.blocks = (product.n + kColumns - 1) / kColumns * parts,
                     .threads = kBlockThreads,
                     .shared_bytes = int(sizeof(typename S::Shared)),
                     .cluster = parts};
  return launch(context, few_rows_kernel<S>, grid, call,
                S::tma_of_rows(product.a.data, product.m, product.k, product.a.stride),
                S::tma_of_matrix(product.b.data, product.n, product.k, product.b.stride));
}

template <class T, class Element, int kRows>
Status run(const Matmul& product, const Context& context) {
  return product.b.transposed ? launch_few_rows<FewRows<T, Element, kRows, true>>(product, context)
                              : launch_few_rows<FewRows<T, Element, kRows, false>>(product, context);
}

template <class T, class Element>
Status run(const Matmul& product, const Context& context) {
  if (product.m <= 8) return run<T, Element, 8>(product, context);
  if (product.m <= 16) return run<T, Element, 16>(product, context);
  if (product.m <= 32) return run<T, Element, 32>(product, context);
  return run<T, Element, 64>(product, context);
}

}  // namespace

Status few_rows_sm90(const Matmul& product, const Context& context) {
  return product.dtype == DType::f16 ? run<f16, cutlass::half_t>(product, context)
                                     : run<bf16, cutlass::bfloat16_t>(product, context);
}

}  // namespace fusedops::cuda
