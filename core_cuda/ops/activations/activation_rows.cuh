// The distribution of activation operators over threads. A kernel is a struct with the call and
//
//   template <class Activation, int kWidth>
//   __device__ void run(int64_t row, int64_t column, int64_t count) const;
//
// which processes kWidth elements of a row, or its last `count`. If all rows are aligned, kWidth is that of a 16-byte
// pack, with a compiled variant for each activation. Otherwise it is 1: neighbouring threads take neighbouring
// elements, and the activation is selected at run time. Kernel::kBlockThreads is the block size.
#pragma once

#include <algorithm>

#include "core/common/activations.h"
#include "core/cuda/divisor.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"

namespace fusedops::cuda {

template <int kWidth, class T>
__device__ void load_elements(const T* from, int64_t count, compute_t<T> (&to)[kWidth]) {
  if constexpr (kWidth == 1) {
    to[0] = to_compute(*from);
  } else {
    const Pack<T> pack = load_pack<true>(from, count);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[i] = element(pack, i);
  }
}

template <int kWidth, class T>
__device__ void load_elements(const Parameter& parameter, int64_t at, int64_t count, compute_t<T> absent,
                              compute_t<T> (&to)[kWidth]) {
  if constexpr (kWidth == 1)
    to[0] = parameter.data ? parameter.get<T>(at) : absent;
  else
    load_parameter<true, T>(parameter, at, count, absent, to);
}

template <int kWidth, class T>
__device__ void store_elements(const compute_t<T> (&from)[kWidth], T* to, int64_t count) {
  if constexpr (kWidth == 1)
    *to = from_compute<T>(from[0]);
  else
    store_pack<true>(rounded<T>(from), to, count);
}

// A single row has an arbitrary stride, and its last pack may be incomplete.
template <class T>
bool is_row_aligned(int64_t rows, int64_t size, const T* data, int64_t stride) {
  return rows > 1 ? are_rows_aligned(size, data, stride) : is_aligned(data);
}

template <class Activation, int kWidth, class Kernel>
__global__ void __launch_bounds__(Kernel::kBlockThreads)
    packs_kernel(Kernel kernel, int64_t packs, int64_t size, Divisor per_row) {
  begin_kernel();
  const int64_t i = int64_t(blockIdx.x) * Kernel::kBlockThreads + threadIdx.x;
  if (i >= packs) return;
  const auto [row, pack] = per_row.divide(i);
  kernel.template run<Activation, kWidth>(row, pack * kWidth, size - pack * kWidth);
}

inline constexpr int kElements = 4;  // per thread

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kBlockThreads)
    elements_kernel(Kernel kernel, int activation, int64_t elements, Divisor size) {
  begin_kernel();
  activations::dispatch(activation, [&](auto chosen) {
    for (int k = 0; k < kElements; ++k) {
      const int64_t i = (int64_t(blockIdx.x) * kElements + k) * Kernel::kBlockThreads + threadIdx.x;
      if (i >= elements) return;
      const auto [row, column] = size.divide(i);
      kernel.template run<decltype(chosen), 1>(row, column, 1);
    }
  });
}

template <int kWidth, class Kernel>
Status run_rows(const Context& context, const Kernel& kernel, int activation, int64_t rows, int64_t size,
                bool aligned) {
  if (rows == 0 || size == 0) return {};
  constexpr int kBlock = Kernel::kBlockThreads;
  const auto ceil_divide = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  if (!aligned)
    return launch(context, elements_kernel<Kernel>, ceil_divide(rows * size, kElements * kBlock), kBlock, kernel,
                  activation, rows * size, Divisor(size));
  const int64_t per_row = ceil_divide(size, kWidth);
  return activations::dispatch(activation, [&](auto chosen) -> Status {
    return launch(context, packs_kernel<decltype(chosen), kWidth, Kernel>, ceil_divide(rows * per_row, kBlock), kBlock,
                  kernel, rows * per_row, size, Divisor(per_row));
  });
}

}  // namespace fusedops::cuda
