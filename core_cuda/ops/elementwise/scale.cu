#include "core/cuda/elementwise.cuh"
#include "ops/elementwise/scale.h"

namespace fusedops {
namespace cuda {
namespace {

// Few blocks loop over y, so that a factor of 1 ends them at once.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads) scale_in_place_kernel(int64_t n, const Scale scale, T* y) {
  begin_kernel();
  if (scale.factor.get<T>() == 1) return;
  const auto function = scale.prepared<T>();
  const int64_t step = int64_t(gridDim.x) * kThreads * kPackSize<T>;
  for (int64_t at = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kPackSize<T>; at < n; at += step) {
    Pack<T> pack = load_pack<kAligned>(y + at, n - at);
#pragma unroll
    for (int i = 0; i < kPackSize<T>; ++i) pack.values[i] = from_compute<T>(function(to_compute(pack.values[i])));
    store_pack<kAligned>(pack, y + at, n - at);
  }
}

Status scale_in_place(const Call& call, const Scale& scale) {
  const View& y = result_of<kScale>(call);
  return dispatch(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int64_t kTile = kThreads * kPackSize<T>, kBlocksOfOne = 2048 / kThreads;
    const int64_t n = y.numel(), most = device_attribute(cudaDevAttrMultiProcessorCount) * kBlocksOfOne;
    return launch(call.context, is_aligned(y.data) ? scale_in_place_kernel<true, T> : scale_in_place_kernel<false, T>,
                  std::min((n + kTile - 1) / kTile, most), kThreads, n, scale, static_cast<T*>(y.data));
  });
}

}  // namespace
}  // namespace cuda

Status scale_cuda(const Call& call) {
  const Scale scale{scalar(call, input_of(kScale, "factor"))};
  return is_in_place(call) ? cuda::scale_in_place(call, scale) : cuda::elementwise<kScale>(call, scale);
}

}  // namespace fusedops
