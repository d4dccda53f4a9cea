// Sums whose order depends on the shape alone: each block sums its tile, then one block sums the partial sums.
#pragma once

#include <cub/block/block_reduce.cuh>

#include "core/common/numeric.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"

namespace fusedops::cuda {

// The sum over the block's threads, valid in thread 0.
template <int kBlockThreads, class A>
__device__ A block_sum(A value) {
  using Reduce = cub::BlockReduce<A, kBlockThreads, cub::BLOCK_REDUCE_WARP_REDUCTIONS>;
  __shared__ typename Reduce::TempStorage storage;
  return Reduce(storage).Sum(value);
}

inline constexpr int kSumThreads = 1024;

template <class A, class T>
__global__ void __launch_bounds__(kSumThreads) sum_partials_kernel(const A* partials, int64_t count, T* out) {
  begin_kernel();
  A sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) sum += partials[i];
  sum = block_sum<kSumThreads>(sum);
  if (threadIdx.x == 0) *out = from_compute<T>(sum);
}

// out = the sum of the partial sums, rounded to out's dtype; zero if there are none.
template <class A>
Status sum_partials(const Context& context, const A* partials, int64_t count, const View& out) {
  return dispatch(out.dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, double> && !std::is_same_v<A, double>)
      return Status::error("fusedops: a float32 sum has no float64 result");
    else
      return launch(context, sum_partials_kernel<A, T>, 1, kSumThreads, partials, count, static_cast<T*>(out.data));
  });
}

// Lanes of a warp take neighbouring columns for coalesced reads; the warps of a block divide the row chunks.
inline constexpr int kRowChunkWarps = 32, kRowChunkColumns = 32;

template <class A, class T>
__global__ void __launch_bounds__(kRowChunkWarps* kRowChunkColumns)
    sum_row_chunks_kernel(const A* partials, int64_t chunks, int64_t columns, T* first, T* second) {
  begin_kernel();
  constexpr int kBatch = 8;                                                    // loads in flight; added as a tree
  const int64_t blocks = (columns + kRowChunkColumns - 1) / kRowChunkColumns;  // for each sum
  const bool is_first = blockIdx.x < blocks;
  T* const out = is_first ? first : second;
  if (!is_first) partials += chunks * columns;
  const int lane = threadIdx.x % kRowChunkColumns, warp = threadIdx.x / kRowChunkColumns;
  const int64_t column = (is_first ? blockIdx.x : blockIdx.x - blocks) * kRowChunkColumns + lane;
  A sum = 0;
  for (int64_t chunk = warp; chunk < chunks; chunk += kRowChunkWarps * kBatch) {
    A terms[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int64_t at = chunk + k * kRowChunkWarps;
      terms[k] = at < chunks && column < columns ? partials[at * columns + column] : A(0);
    }
#pragma unroll
    for (int half = kBatch / 2; half > 0; half /= 2)
#pragma unroll
      for (int k = 0; k < half; ++k) terms[k] += terms[k + half];
    sum += terms[0];
  }
  __shared__ A sums[kRowChunkWarps][kRowChunkColumns + 1];
  sums[warp][lane] = sum;
  for (int half = kRowChunkWarps / 2; half > 0; half /= 2) {
    __syncthreads();
    if (warp < half) sums[warp][lane] += sums[warp + half][lane];
  }
  if (warp == 0 && column < columns) out[column] = from_compute<T>(sums[0][lane]);
}

// out[column] = the sum of partials[chunk][column] over the row chunks, rounded to out's dtype; zero if there are none.
// The partial sums of an optional second out, of the same dtype, lie behind those of the first.
template <class A>
Status sum_row_chunks(const Context& context, const A* partials, int64_t chunks, int64_t columns, const View& out,
                      const View* second = nullptr) {
  return dispatch(out.dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, double> != std::is_same_v<A, double>)
      return Status::error("fusedops: sums and their result must both be float64, or neither");
    else
      return launch(context, sum_row_chunks_kernel<A, T>,
                    (columns + kRowChunkColumns - 1) / kRowChunkColumns * (second ? 2 : 1),
                    kRowChunkWarps * kRowChunkColumns, partials, chunks, columns, static_cast<T*>(out.data),
                    static_cast<T*>(second ? second->data : nullptr));
  });
}

}  // namespace fusedops::cuda
