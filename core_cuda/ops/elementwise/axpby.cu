#include "core/cuda/elementwise.cuh"
#include "core/cuda/reduce.cuh"
#include "ops/elementwise/axpby.h"

namespace fusedops {

Status axpby_cuda(const Call& call) {
  return cuda::elementwise<kAxpby>(call, Axpby{scalar(call, input_of(kAxpby, "a"))});
}

namespace cuda {
namespace {

constexpr int kPacks = 4;  // per thread: few partial sums, and no loop, which was measured to cost 5 %
template <class T>
constexpr int kTile = kThreads * kPacks * kPackSize<T>;

// Writes dx of one tile and returns the sum of this thread's terms. Only the last tile checks for its end; the others
// issue all loads before the first use.
template <bool kAligned, bool kWhole, class T>
__device__ compute_t<T> axpby_backward_tile(const AxpbyBackward<T>& call) {
  using A = compute_t<T>;
  constexpr int kPack = kPackSize<T>;
  const int64_t first = int64_t(blockIdx.x) * kTile<T> + threadIdx.x * kPack;
  const auto at = [=](int p) { return first + p * kThreads * kPack; };
  const auto count = [&](int p) { return kWhole ? int64_t(kPack) : call.n - at(p); };
  const A a = call.a.template get<T>();
  Pack<T> dy[kPacks], x[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    dy[p] = load_pack<kAligned>(call.dy + at(p), count(p));
    x[p] = load_pack<kAligned>(call.x + at(p), count(p));
  }
  A sum = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const A dy_i = to_compute(dy[p].values[i]);
      sum += dy_i * to_compute(x[p].values[i]);
      dy[p].values[i] = from_compute<T>(a * dy_i);
    }
    if (call.dx) store_pack<kAligned>(dy[p], call.dx + at(p), count(p));
  }
  return sum;
}

// Reads dy and x and writes dx at memory bandwidth. Each block processes one tile and writes the sum of its terms.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads) axpby_backward_kernel(AxpbyBackward<T> call) {
  begin_kernel();
  const bool whole = int64_t(blockIdx.x + 1) * kTile<T> <= call.n;
  const compute_t<T> terms =
      whole ? axpby_backward_tile<kAligned, true>(call) : axpby_backward_tile<false, false>(call);
  const compute_t<T> sum = block_sum<kThreads>(terms);
  if (threadIdx.x == 0) call.partials[blockIdx.x] = sum;
}

template <class T>
Status axpby_backward(const AxpbyBackward<T>& call, const Context& context) {
  const int64_t blocks = (call.n + kTile<T> - 1) / kTile<T>;
  const bool aligned = is_aligned(call.dy) && is_aligned(call.x) && is_aligned(call.dx);
  FUSEDOPS_TRY(launch(context, aligned ? axpby_backward_kernel<true, T> : axpby_backward_kernel<false, T>, blocks,
                      kThreads, call));
  return sum_partials(context, call.partials, blocks, call.da);
}

}  // namespace
}  // namespace cuda

Status axpby_backward_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kAxpbyBackward, "x")]->dtype, [&](auto tag) {
    return cuda::axpby_backward(AxpbyBackward<typename decltype(tag)::type>(call), call.context);
  });
}

}  // namespace fusedops
