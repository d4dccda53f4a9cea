// The CUDA engine of elementwise operators. Limit: memory bandwidth; every element is read and written once.
#pragma once

#include <utility>

#include "core/launch.cuh"
#include "core/operator.h"
#include "core/pack.cuh"

namespace fusedops::cuda {

template <class T, int kArity>
struct Inputs {
  const T* data[kArity];
};

// Each thread owns kUnroll packs, a block apart, and loads them all before it computes: enough bytes in flight to hide
// the latency of memory.
template <int kUnroll, bool kAligned, class T, int kArity, class Formula>
__global__ void __launch_bounds__(kThreads)
    elementwise_kernel(int64_t n, Formula formula, T* out, Inputs<T, kArity> in) {
  constexpr int kPack = kPackSize<T>;
  const auto function = formula.template prepared<T>();
  const int64_t first = (int64_t(blockIdx.x) * kThreads * kUnroll + threadIdx.x) * kPack;
  Pack<T> packs[kUnroll][kArity];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t at = first + u * kThreads * kPack;
#pragma unroll
    for (int k = 0; k < kArity; ++k) packs[u][k] = load_pack<kAligned>(in.data[k] + at, n - at);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t at = first + u * kThreads * kPack;
    Pack<T> result;
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      result.values[i] = [&]<size_t... K>(std::index_sequence<K...>) {
        return from_compute<T>(function(to_compute(packs[u][K].values[i])...));
      }(std::make_index_sequence<kArity>());
    store_pack<kAligned>(result, out + at, n - at);
  }
}

// out = formula(inputs...), all of one dtype and size. `inputs` are positions in the declaration.
template <class Formula, class... Position>
Status elementwise(const Call& call, const Formula& formula, Position... inputs) {
  const View& out = call.outputs[0];
  const bool aligned = is_aligned(out.data) && (is_aligned(call.inputs[inputs]->data) && ...);
  return dispatch(out.dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    constexpr int kArity = sizeof...(inputs);
    const int64_t n = out.numel();
    const Inputs<T, kArity> in = {{static_cast<const T*>(call.inputs[inputs]->data)...}};
    const auto run = [&]<int kUnroll, bool kAligned>() {
      constexpr int64_t kTile = int64_t(kThreads) * kUnroll * kPackSize<T>;
      return launch(call.context, elementwise_kernel<kUnroll, kAligned, T, kArity, Formula>, (n + kTile - 1) / kTile,
                    kThreads, n, formula, static_cast<T*>(out.data), in);
    };
    if (!aligned) return run.template operator()<1, false>();
    // A small tensor is spread over as many threads as there are; a large one fills each thread's pipeline.
    const bool small = n * int64_t(sizeof(T)) <= (16 << 20);
    return small ? run.template operator()<1, true>() : run.template operator()<4, true>();
  });
}

}  // namespace fusedops::cuda
