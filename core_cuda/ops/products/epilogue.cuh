// The epilogue of a product, one element at a time, for kernels that it does not slow down.
#pragma once

#include "core/common/activations.h"
#include "core/common/numeric.h"
#include "core/cuda/divisor.cuh"
#include "core/cuda/launch.cuh"
#include "ops/products/matmul.h"

namespace fusedops::cuda {

template <class T>
struct ElementEpilogue {
  const T* bias;
  int activation;
  T* z;

  explicit ElementEpilogue(const Epilogue& epilogue)
      : bias(static_cast<const T*>(epilogue.bias)), activation(epilogue.activation), z(static_cast<T*>(epilogue.z)) {}

  __device__ bool is_empty() const { return !bias && !activation && !z; }

  // Element i of c, which is in this column, from its sum. Stores z.
  __device__ compute_t<T> finish(compute_t<T> sum, int64_t i, int64_t column) const {
    if (bias) sum += to_compute(bias[column]);
    if (z) z[i] = from_compute<T>(sum);
    return activations::dispatch(activation, [&](auto chosen) { return decltype(chosen)::at(sum).value; });
  }
};

}  // namespace fusedops::cuda
