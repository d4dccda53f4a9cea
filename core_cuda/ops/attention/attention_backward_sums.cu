// Before and after the kernels of the backward: delta = sum(dy * y) of each row, with zeros in the sums of dq, which
// stay there where no key is seen, and dq = scale * its sum. Limit: memory bandwidth. dy and y are read once, and the
// sums are written and read once.
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "ops/attention/attention_paths.h"
#include "ops/attention/attention_tiles.cuh"

namespace fusedops::cuda {
namespace {

constexpr int kLanes = 16;  // that share a row

// Row `index` of the calls' rows.
struct Row {
  __device__ Row(const Attention& call, int64_t index) {
    const int64_t positions = call.offsets_q ? call.packed_queries : call.queries;
    position = index % positions, index /= positions;
    head = index % call.heads, sequence = index / call.heads;
  }

  int64_t sequence, position, head;
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_begin_backward_kernel(const __grid_constant__ Attention call, const BackwardSums sums,
                                    const bool aligned) {
  using A = compute_t<T>;
  begin_kernel();
  const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x, index = thread / kLanes;
  const int lane = threadIdx.x % kLanes;
  if (sums.counters)
    for (int64_t i = thread; i < sums.counter_count; i += int64_t(gridDim.x) * kThreads) sums.counters[i] = 0;
  A sum = 0;
  if (index < sums.rows) {
    const Row row(call, index);
    const T* const dy = call.dy.row<const T>(row.sequence, row.position, row.head);
    const T* const y = call.y.row<const T>(row.sequence, row.position, row.head);
    for (int i = lane * kPackSize<T>; i < call.dim_v; i += kLanes * kPackSize<T>) {
      const Pack<T> a = aligned ? load_pack<true>(dy + i, call.dim_v - i) : load_pack<false>(dy + i, call.dim_v - i);
      const Pack<T> b = aligned ? load_pack<true>(y + i, call.dim_v - i) : load_pack<false>(y + i, call.dim_v - i);
#pragma unroll
      for (int j = 0; j < kPackSize<T>; ++j) sum += element(a, j) * element(b, j);
    }
    if (sums.dq)
      for (int i = lane * 4; i < sums.pitch; i += kLanes * 4)
        *reinterpret_cast<float4*>(sums.dq + index * sums.pitch + i) = float4{};
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (index < sums.rows && lane == 0) static_cast<A*>(sums.delta)[index] = sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_finish_dq_kernel(const __grid_constant__ Attention call, const BackwardSums sums, const float scale,
                               const bool aligned) {
  begin_kernel();
  const int64_t index = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kLanes;
  if (index >= sums.rows) return;
  const Row row(call, index);
  T* const dq = call.dq.row<T>(row.sequence, row.position, row.head);
  const float* const from = sums.dq + index * sums.pitch;
  for (int i = threadIdx.x % kLanes * 8; i < call.dim; i += kLanes * 8) {
    float values[8];
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i + j);
      values[j] = four.x * scale, values[j + 1] = four.y * scale;
      values[j + 2] = four.z * scale, values[j + 3] = four.w * scale;
    }
    if (aligned)
      store_pack<true>(rounded<T>(values), dq + i, call.dim - i);
    else
      store_pack<false>(rounded<T>(values), dq + i, call.dim - i);
  }
}

int64_t blocks_of(int64_t rows) { return (rows * kLanes + kThreads - 1) / kThreads; }

template <class T>
Status finish(const Attention& call, const BackwardSums& sums, const Context& context) {
  return launch(context, attention_finish_dq_kernel<T>, blocks_of(sums.rows), kThreads, call, sums,
                static_cast<float>(call.scale), are_aligned<T>(call.dq));
}

}  // namespace

Status begin_backward(const Attention& call, const BackwardSums& sums, const Context& context) {
  return dispatch(call.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    // One block even without rows: blocks number themselves by a counter.
    return launch(context, attention_begin_backward_kernel<T>, std::max<int64_t>(blocks_of(sums.rows), 1), kThreads,
                  call, sums, are_aligned<T>(call.dy) && are_aligned<T>(call.y));
  });
}

Status finish_dq(const Attention& call, const BackwardSums& sums, const Context& context) {
  return call.dtype == DType::f16 ? finish<f16>(call, sums, context) : finish<bf16>(call, sums, context);
}

}  // namespace fusedops::cuda
