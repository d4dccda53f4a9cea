// How the kernels of both norms read their weight.
#pragma once

#include "core/pack.cuh"
#include "ops/norm.h"

namespace fusedops::cuda {

// weight + offset for a pack of columns from `at` on; 1 if there is no weight. Norm: NormForward or NormBackward.
template <bool kAligned, class T, class Norm>
__device__ void load_weight(const Norm& norm, int64_t at, compute_t<T> (&weight)[kPackSize<T>]) {
  using A = compute_t<T>;
  load_parameter<kAligned, T>(norm.weight, at, norm.cols - at, A(1), weight);
  const A offset = norm.weight.data ? static_cast<A>(norm.offset) : A(0);
#pragma unroll
  for (int i = 0; i < kPackSize<T>; ++i) weight[i] += offset;
}

}  // namespace fusedops::cuda
