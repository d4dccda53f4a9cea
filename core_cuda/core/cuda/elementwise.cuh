// The CUDA engine of elementwise operators. Limit: memory bandwidth; every element is read and written once.
#pragma once

#include <utility>

#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/declaration/operator.h"

namespace fusedops::cuda {

template <class T, int kArity>
struct Inputs {
  const T* data[kArity];
};

// One pack per thread. The many threads of a multiprocessor keep enough bytes in flight; a second pack per thread was
// measured to cost 3 %, and a small tensor wants all the threads it can get.
template <bool kAligned, class T, int kArity, class Formula>
__global__ void __launch_bounds__(kThreads)
    elementwise_kernel(int64_t n, Formula formula, T* out, Inputs<T, kArity> in) {
  begin_kernel();
  const auto function = formula.template prepared<T>();
  const int64_t at = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kPackSize<T>;
  Pack<T> packs[kArity], result;
#pragma unroll
  for (int k = 0; k < kArity; ++k) packs[k] = load_pack<kAligned>(in.data[k] + at, n - at);
#pragma unroll
  for (int i = 0; i < kPackSize<T>; ++i)
    result.values[i] = [&]<size_t... K>(std::index_sequence<K...>) {
      return from_compute<T>(function(to_compute(packs[K].values[i])...));
    }(std::make_index_sequence<kArity>());
  store_pack<kAligned>(result, out + at, n - at);
}

// out = formula(inputs...), all of one dtype and size. `inputs` are positions in the declaration.
template <class Formula, class... Position>
Status elementwise(const Call& call, const Formula& formula, Position... inputs) {
  const View& out = call.outputs[0];
  const bool aligned = is_aligned(out.data) && (is_aligned(call.inputs[inputs]->data) && ...);
  return dispatch(out.dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    constexpr int kArity = sizeof...(inputs);
    constexpr int64_t kTile = kThreads * kPackSize<T>;
    const int64_t n = out.numel();
    const Inputs<T, kArity> in = {{static_cast<const T*>(call.inputs[inputs]->data)...}};
    const auto kernel =
        aligned ? elementwise_kernel<true, T, kArity, Formula> : elementwise_kernel<false, T, kArity, Formula>;
    return launch(call.context, kernel, (n + kTile - 1) / kTile, kThreads, n, formula, static_cast<T*>(out.data), in);
  });
}

}  // namespace fusedops::cuda
