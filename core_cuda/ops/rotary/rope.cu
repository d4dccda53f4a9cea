#include "core/cuda/divisor.cuh"
#include "core/cuda/launch.cuh"
#include "ops/rotary/rope.cuh"

namespace fusedops {
namespace cuda {
namespace {

// Divisors that decompose an item's index into a position in x, applied from the last to the first.
template <class T, class Angle>
struct Items {
  Rope<T, Angle> rope;
  int64_t count;
  Divisor per_row, inner, middle, per_batch;
};

// Reads x and writes y. Limit: memory bandwidth; cos and sin are small and stay in the caches. Each thread processes
// one item: two packs of x whose elements form pairs, or one pack of features beyond them, which it copies. If not
// aligned, an item has two elements or one.
template <bool kAligned, bool kInterleaved, class T, class Angle>
__global__ void __launch_bounds__(kThreads) rope_kernel(const __grid_constant__ Items<T, Angle> items) {
  begin_kernel();
  using A = compute_t<T>;
  constexpr int kWidth = kAligned ? kPackSize<T> : 1;
  const Rope<T, Angle>& call = items.rope;
  const int64_t item = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= items.count) return;
  const auto [row, place] = items.per_row.divide(item);
  const auto [outer, k] = items.inner.divide(row);
  const auto [i, j] = items.middle.divide(outer);
  const T* x = call.x + i * call.rows.strides[0] + j * call.rows.strides[1] + k * call.rows.strides[2];
  T* y = call.y + row * call.rows.size;

  const int64_t pair = place * kWidth;
  if (pair >= call.half) {
    const int64_t at = call.half + pair;
    if constexpr (kAligned)
      store_whole(load_pack<true>(x + at, kWidth), y + at);
    else
      y[at] = x[at];
    return;
  }
  const int64_t first = kInterleaved ? 2 * pair : pair, second = kInterleaved ? first + kWidth : first + call.half;
  const int64_t angles = call.angle_row(items.per_batch.divide(i).quotient, j, k) * call.half + pair;
  Stored<T, kWidth> in[2];
  Stored<Angle, kWidth> cos, sin;
  in[0].template load<kAligned>(x + first, kWidth);
  in[1].template load<kAligned>(x + second, kWidth);
  cos.template load<kAligned>(call.cos + angles, kWidth);
  sin.template load<kAligned>(call.sin + angles, kWidth);
  A out[2][kWidth];
  rotate<kInterleaved>(in, cos, sin, call.inverse, out);
  store<kAligned>(out[0], y + first);
  store<kAligned>(out[1], y + second);
}

template <class T, class Angle>
Status run_on_gpu(const Rope<T, Angle>& call, const Context& context) {
  const bool aligned = has_packs(call) && are_aligned(call);
  const int64_t width = aligned ? kPackSize<T> : 1, per_row = (call.rows.size - call.half) / width;
  const int64_t count = call.count() * per_row;
  if (count == 0) return {};
  const Items<T, Angle> items{
      call, count, Divisor(per_row), Divisor(call.rows.sizes[2]), Divisor(call.rows.sizes[1]), Divisor(call.per_batch)};
  const auto kernel = call.interleaved
                          ? aligned ? rope_kernel<true, true, T, Angle> : rope_kernel<false, true, T, Angle>
                      : aligned ? rope_kernel<true, false, T, Angle>
                                : rope_kernel<false, false, T, Angle>;
  return launch(context, kernel, (count + kThreads - 1) / kThreads, kThreads, items);
}

}  // namespace
}  // namespace cuda

Status rope_cuda(const Call& call) {
  return dispatch_rope(call, [&](const auto& rope) { return cuda::run_on_gpu(rope, call.context); });
}

}  // namespace fusedops
