// The CUDA engine of elementwise operators. Limit: memory bandwidth; every element is read and written once.
#pragma once

#include <algorithm>
#include <utility>

#include "core/common/elementwise.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/random_words.cuh"

namespace fusedops::cuda {

template <class T, int kArity>
struct Inputs {
  const T* data[kArity];
};

// A formula that draws random words, in a part of a call. Its kernels are separate, since they need more registers.
template <class Formula>
struct OfPart {
  template <class T>
  FUSEDOPS_HD auto prepared() const {
    return formula.template prepared<T>();
  }

  Formula formula;
};

template <class T, class Formula>
__device__ auto words_of(const Formula&, Seed seed, int64_t position) {
  return RandomWords<kPackSize<T>, true>(seed, position);
}

template <class T, class Formula>
__device__ auto words_of(const OfPart<Formula>& of_part, Seed seed, int64_t position) {
  return RandomWordsOfPart<kPackSize<T>>(seed, of_part.formula.runs(), position);
}

// The function of element i of the pack at position `at`, with the element's random word if the function draws one.
template <class T, class Formula, class Function>
__device__ auto function_at(const Formula& formula, const Function& function, int64_t at) {
  if constexpr (kDraws<Function>)
    return [=, words = words_of<T>(formula, function.seed, at)](int i, auto... x) { return function(words[i], x...); };
  else
    return [=](int, auto... x) { return function(x...); };
}

// Minimum blocks per multiprocessor. Random words take about as long as memory accesses; the two overlap only at full
// occupancy. With several inputs, 32 registers per thread would not suffice.
template <bool kAligned, class T, int kArity, class Formula>
inline constexpr int kMinBlocks =
    kAligned && kArity == 1 && kDraws<decltype(std::declval<Formula>().template prepared<T>())> ? 2048 / kThreads : 1;
template <bool kAligned, class T, int kArity, class Formula>
inline constexpr int kMinBlocks<kAligned, T, kArity, OfPart<Formula>> = 1;

// One pack per thread: full occupancy keeps enough bytes in flight, and small tensors need all threads. A second pack
// per thread was measured to cost 3 %.
template <bool kAligned, class T, int kArity, class Formula>
__global__ void __launch_bounds__(kThreads, kMinBlocks<kAligned, T, kArity, Formula>)
    elementwise_kernel(int64_t n, Formula formula, T* out, Inputs<T, kArity> in) {
  begin_kernel();
  const auto function = formula.template prepared<T>();
  const int64_t at = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kPackSize<T>;
  Pack<T> packs[kArity], result;
#pragma unroll
  for (int k = 0; k < kArity; ++k) packs[k] = load_pack<kAligned>(in.data[k] + at, n - at);
  const auto element = function_at<T>(formula, function, at);
#pragma unroll
  for (int i = 0; i < kPackSize<T>; ++i)
    result.values[i] = [&]<size_t... K>(std::index_sequence<K...>) {
      return from_compute<T>(element(i, to_compute(packs[K].values[i])...));
    }(std::make_index_sequence<kArity>());
  store_pack<kAligned>(result, out + at, n - at);
}

// result = formula(tensors...) for an operator, all of one dtype and size.
template <const Signature& kOp, class Formula>
Status elementwise(const Call& call, const Formula& formula) {
  const View& out = result_of<kOp>(call);
  return dispatch(out.dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    constexpr int kArity = tensor_places<kOp>().size();
    constexpr int64_t kTile = kThreads * kPackSize<T>;
    const int64_t n = out.numel();
    const auto tensors = tensors_of<kOp, T>(call);
    const bool aligned = is_aligned(out.data) && std::all_of(tensors.begin(), tensors.end(), is_aligned);
    Inputs<T, kArity> in;
    std::copy(tensors.begin(), tensors.end(), in.data);
    const auto kernel =
        aligned ? elementwise_kernel<true, T, kArity, Formula> : elementwise_kernel<false, T, kArity, Formula>;
    return launch(call.context, kernel, (n + kTile - 1) / kTile, kThreads, n, formula, static_cast<T*>(out.data), in);
  });
}

}  // namespace fusedops::cuda
