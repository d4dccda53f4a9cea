// Sums whose order follows from the shape alone: each block sums its tile, then one block sums the blocks' sums.
#pragma once

#include <cub/block/block_reduce.cuh>

#include "core/launch.cuh"
#include "core/numeric.h"
#include "core/pack.cuh"

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

}  // namespace fusedops::cuda
