#include "core/cuda/divisor.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rounding.cuh"
#include "ops/rotary/rope.h"

namespace fusedops {
namespace cuda {
namespace {

// Loads kCount elements in the compute type.
template <bool kAligned, int kCount, class T>
__device__ void load(const T* from, compute_t<T> (&to)[kCount]) {
  if constexpr (kAligned) {
#pragma unroll
    for (int p = 0; p < kCount; p += kPackSize<T>) {
      const Pack<T> pack = load_pack<true>(from + p, kPackSize<T>);
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) to[p + i] = to_compute(pack.values[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = to_compute(from[i]);
  }
}

template <bool kAligned, int kCount, class T>
__device__ void store(const compute_t<T> (&from)[kCount], T* to) {
  if constexpr (kAligned) {
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < kCount; ++i) pack.values[i] = from_compute<T>(from[i]);
    store_pack<true>(pack, to, kCount);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = from_compute<T>(from[i]);
  }
}

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
__global__ void __launch_bounds__(kThreads) rope_kernel(Items<T, Angle> items) {
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
    store_pack<kAligned>(load_pack<kAligned>(x + at, kWidth), y + at, kWidth);
    return;
  }
  const int64_t first = kInterleaved ? 2 * pair : pair, second = kInterleaved ? first + kWidth : first + call.half;
  const int64_t angles = call.angle_row(items.per_batch.divide(i).quotient, j, k) * call.half + pair;
  A in[2][kWidth], out[2][kWidth], cos[kWidth], sin[kWidth];
  load<kAligned>(x + first, in[0]);
  load<kAligned>(x + second, in[1]);
  load<kAligned>(call.cos + angles, cos);
  load<kAligned>(call.sin + angles, sin);
#pragma unroll
  for (int p = 0; p < kWidth; ++p) {
    const int at = kInterleaved ? 2 * p : p, other = kInterleaved ? at + 1 : p + kWidth;
    const A a = in[at / kWidth][at % kWidth], b = in[other / kWidth][other % kWidth];
    const A s = call.inverse ? -sin[p] : sin[p];
    out[at / kWidth][at % kWidth] = sum(product(a, cos[p]), -product(b, s));
    out[other / kWidth][other % kWidth] = sum(product(b, cos[p]), product(a, s));
  }
  store<kAligned>(out[0], y + first);
  store<kAligned>(out[1], y + second);
}

// True if every access can have 16 bytes.
template <class T, class Angle>
bool takes_packs(const Rope<T, Angle>& call) {
  const auto whole = [](int64_t elements) { return elements % kPackSize<T> == 0; };
  bool aligned = is_aligned(call.x) && is_aligned(call.y) && is_aligned(call.cos) && is_aligned(call.sin);
  aligned = aligned && whole(call.half) && whole(call.rows.size);
  for (int i = 0; i < 3; ++i) aligned = aligned && (call.rows.sizes[i] == 1 || whole(call.rows.strides[i]));
  return aligned;
}

template <class T, class Angle>
Status run_on_gpu(const Rope<T, Angle>& call, const Context& context) {
  const bool aligned = takes_packs(call);
  const int64_t width = aligned ? kPackSize<T> : 1, per_row = (call.rows.size - call.half) / width;
  const int64_t count = call.rows.sizes[0] * call.rows.sizes[1] * call.rows.sizes[2] * per_row;
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
