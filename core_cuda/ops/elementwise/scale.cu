#include "core/cuda/elementwise.cuh"
#include "ops/elementwise/scale.h"

namespace fusedops {
namespace cuda {
namespace {

// Scales x in place. A factor of 1, which the host does not know, leaves the memory untouched.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads) scale_in_place_kernel(int64_t n, Scalar scalar, T* x) {
  begin_kernel();
  const compute_t<T> factor = scalar.get<T>();
  if (factor == 1) return;
  const int64_t step = int64_t(gridDim.x) * kThreads * kPackSize<T>;
  for (int64_t at = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kPackSize<T>; at < n; at += step) {
    Pack<T> pack = load_pack<kAligned>(x + at, n - at);
#pragma unroll
    for (int i = 0; i < kPackSize<T>; ++i) pack.values[i] = from_compute<T>(to_compute(pack.values[i]) * factor);
    store_pack<kAligned>(pack, x + at, n - at);
  }
}

constexpr int64_t kMaxBlocks = 2048;  // few, since a factor of 1 leaves them nothing to do

Status scale_in_place(const View& x, const Scalar& factor, const Context& context) {
  return dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int64_t kTile = kThreads * kPackSize<T>;
    const int64_t n = x.numel(), blocks = std::min((n + kTile - 1) / kTile, kMaxBlocks);
    const auto kernel = is_aligned(x.data) ? scale_in_place_kernel<true, T> : scale_in_place_kernel<false, T>;
    return launch(context, kernel, blocks, kThreads, n, factor, static_cast<T*>(x.data));
  });
}

}  // namespace
}  // namespace cuda

Status scale_cuda(const Call& call) {
  const Scalar factor = scalar(call, input_of(kScale, "factor"));
  const View& y = result_of<kScale>(call);
  if (call.inputs[input_of(kScale, "x")]->data == y.data) return cuda::scale_in_place(y, factor, call.context);
  return cuda::elementwise<kScale>(call, Scale{factor});
}

}  // namespace fusedops
