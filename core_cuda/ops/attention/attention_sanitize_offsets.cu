// Preprocessing for packed sequences: makes the offsets monotone and zero-fills rows outside all sequences. Valid
// offsets leave no such rows, so that the cost is one launch.
#include "core/cuda/launch.cuh"
#include "ops/attention/attention_kernels.h"

namespace fusedops::cuda {
namespace {

// Running maximum of the offsets, clamped to [0, size]: a scan over the threads of a block, each with adjacent offsets.
// Every block computes it, and block 0 stores it. Returns the positions from the first offset up to the last.
__device__ Range sanitized(const int32_t* given, int64_t count, int size, int32_t* to) {
  constexpr unsigned kAll = ~0u;
  __shared__ int warp_partials[kThreads / 32];
  const auto within = [=](int64_t i) { return min(max(given[i], 0), size); };
  const int64_t each = (count + kThreads - 1) / kThreads, begin = threadIdx.x * each, end = min(begin + each, count);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int through = 0;  // maximum up to this thread's last offset
  for (int64_t i = begin; i < end; ++i) through = max(through, within(i));
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int before = __shfl_up_sync(kAll, through, distance);
    if (lane >= distance) through = max(through, before);
  }
  __syncthreads();  // warp_partials of the previous call has been read
  if (lane == 31) warp_partials[warp] = through;
  __syncthreads();
  int largest = __shfl_up_sync(kAll, through, 1), last = 0;
  if (lane == 0) largest = 0;
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i < warp) largest = max(largest, warp_partials[i]);
    last = max(last, warp_partials[i]);
  }
  if (blockIdx.x == 0)
    for (int64_t i = begin; i < end; ++i) to[i] = largest = max(largest, within(i));
  return {within(0), last};
}

// Fills contiguous rows outside of a range, with all blocks.
template <class T>
__device__ void fill_outside(void* data, int rows, int64_t width, const Range& range, T value) {
  T* const all = static_cast<T*>(data);
  const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x, threads = int64_t(gridDim.x) * kThreads;
  for (int64_t i = thread; i < range.begin * width; i += threads) all[i] = value;
  for (int64_t i = range.end * width + thread; i < rows * width; i += threads) all[i] = value;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_packed_kernel(const __grid_constant__ Attention call, const PackedOffsets offsets,
                            const bool is_backward) {
  using A = compute_t<T>;
  begin_kernel();
  if (blockIdx.x == 0 && threadIdx.x == 0) *offsets.taken = 0;
  const Range queries = sanitized(call.offsets_q, offsets.count, call.packed_queries, offsets.q);
  const Range keys = sanitized(call.offsets_k, offsets.count, call.packed_keys, offsets.k);
  const int64_t columns = int64_t(call.heads) * call.dim, columns_v = int64_t(call.heads) * call.dim_v;
  const int64_t key_columns = int64_t(call.key_heads) * call.dim, value_columns = int64_t(call.key_heads) * call.dim_v;
  if (is_backward) {
    fill_outside(call.dq.data, call.packed_queries, columns, queries, T{});
    fill_outside(call.dk.data, call.packed_keys, key_columns, keys, T{});
    fill_outside(call.dv.data, call.packed_keys, value_columns, keys, T{});
  } else {
    fill_outside(call.y.data, call.packed_queries, columns_v, queries, T{});
    A* const lse = static_cast<A*>(call.lse.data);
    for (int head = 0; head < call.heads; ++head)
      fill_outside(lse + int64_t(head) * call.packed_queries, call.packed_queries, 1, queries, A(-INFINITY));
  }
}

}  // namespace

Status sanitize_offsets(const Attention& call, const PackedOffsets& offsets, bool is_backward, const Context& context) {
  constexpr int kBlocks = 64;  // enough for memory bandwidth, with a short launch
  return dispatch(call.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return launch(context, attention_packed_kernel<T>, kBlocks, kThreads, call, offsets, is_backward);
  });
}

}  // namespace fusedops::cuda
