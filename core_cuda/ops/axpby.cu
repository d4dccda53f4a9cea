#include "core/elementwise.cuh"
#include "core/reduce.cuh"
#include "ops/axpby.h"

namespace fusedops {

Status axpby_cuda(const Call& call) { return cuda::elementwise(call, Axpby{scalar(call, 0)}, 1, 2); }

namespace cuda {
namespace {

constexpr int kUnroll = 4;
template <class T>
constexpr int kTile = kThreads * kUnroll * kPackSize<T>;

// Reads dy and x, writes dx: three tensors. Block k takes tiles k, k + grid, ...: which elements meet in which partial
// sum follows from n alone.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads) axpby_backward_kernel(AxpbyBackward<T> call) {
  using A = compute_t<T>;
  constexpr int kPack = kPackSize<T>;
  const A a = call.a.template get<T>();
  A sum = 0;
  for (int64_t tile = blockIdx.x; tile * kTile<T> < call.n; tile += gridDim.x) {
    const int64_t first = tile * kTile<T> + threadIdx.x * kPack;
    Pack<T> dy[kUnroll], x[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = first + u * kThreads * kPack;
      dy[u] = load_pack<kAligned>(call.dy + at, call.n - at);
      x[u] = load_pack<kAligned>(call.x + at, call.n - at);
    }
    A terms = 0;  // a tile's own sum, so that the running sum takes few, large steps
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const A dy_i = to_compute(dy[u].values[i]);
        terms += dy_i * to_compute(x[u].values[i]);
        dy[u].values[i] = from_compute<T>(a * dy_i);
      }
      const int64_t at = first + u * kThreads * kPack;
      if (call.dx) store_pack<kAligned>(dy[u], call.dx + at, call.n - at);
    }
    sum += terms;
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) call.partials[blockIdx.x] = sum;
}

template <class T>
Status axpby_backward(const AxpbyBackward<T>& call, const Context& context) {
  const int64_t blocks = partial_sums(call.n, kTile<T>);
  const bool aligned = is_aligned(call.dy) && is_aligned(call.x) && is_aligned(call.dx);
  FUSEDOPS_TRY(launch(context, aligned ? axpby_backward_kernel<true, T> : axpby_backward_kernel<false, T>, blocks,
                      kThreads, call));
  return sum_partials(context, call.partials, blocks, call.da);
}

}  // namespace
}  // namespace cuda

Status axpby_backward_cuda(const Call& call) {
  return dispatch(call.inputs[AxpbyBackward<float>::kX]->dtype, [&](auto tag) {
    return cuda::axpby_backward(AxpbyBackward<typename decltype(tag)::type>(call), call.context);
  });
}

}  // namespace fusedops
