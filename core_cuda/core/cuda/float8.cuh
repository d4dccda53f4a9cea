// How the threads of a row round its values to 8 bits: core/common/float8.h.
//
// Limit: memory bandwidth, with few instructions to spare, since the result has a byte for each element. A row that is
// held is computed once; the values of one that is not are computed again for each pass.
#pragma once

#include "core/common/float8.h"
#include "core/common/formulas.h"
#include "core/cuda/row_cluster.cuh"

namespace fusedops::cuda {

// Neighbouring threads that hold the elements of one scale of a block, a pack each.
template <class T>
inline constexpr int kScaleThreads = kScaleBlock / kPackSize<T>;

__device__ inline float larger(float a, float b) { return fmaxf(a, b); }  // the one that is not NaN
__device__ inline double larger(double a, double b) { return fmax(a, b); }

// The largest absolute value among elements [0, count) of a pack; an aligned one is whole. NaN does not count.
template <bool kAligned, class A, int kPack>
__device__ A largest_of(const A (&values)[kPack], int64_t count) {
  A largest = 0;
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    if (kAligned || i < count) largest = larger(largest, activations::magnitude(values[i]));
  return count > 0 ? largest : A(0);
}

// Two numbers as two bytes, the first one in the lower.
template <bool kIsE5m2>
__device__ uint16_t two_float8s(float first, float second) {
#if __CUDA_ARCH__ >= 890
  uint16_t both;
  if constexpr (kIsE5m2)
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;" : "=h"(both) : "f"(first), "f"(second));
  else
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(both) : "f"(first), "f"(second));
  return both;
#else
  using Format = std::conditional_t<kIsE5m2, E5m2, E4m3>;
  return float8_from<Format>(first) | float8_from<Format>(second) << 8;
#endif
}

template <int kPack>
struct alignas(kPack) Float8Pack {
  uint16_t pairs[kPack / 2];
};

template <bool kAligned, bool kIsE5m2, class A, int kPack>
__device__ void store_float8s(const A (&values)[kPack], A inverse, uint8_t* to, int64_t count) {
  Float8Pack<kPack> pack;
#pragma unroll
  for (int i = 0; i < kPack; i += 2)
    pack.pairs[i / 2] = two_float8s<kIsE5m2>(to_odd(values[i] * inverse), to_odd(values[i + 1] * inverse));
  if constexpr (kAligned) {
    if (count > 0) *reinterpret_cast<Float8Pack<kPack>*>(to) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      if (i < count) to[i] = static_cast<uint8_t>(pack.pairs[i / 2] >> (8 * (i % 2)));
  }
}

// The bits of numbers that are not negative are in their order.
__device__ inline void raise_to(float* largest, float value) {
  if (value > *static_cast<volatile float*>(largest))
    atomicMax(reinterpret_cast<unsigned*>(largest), __float_as_uint(value));
}
__device__ inline void raise_to(double* largest, double value) {
  if (value > *static_cast<volatile double*>(largest))
    atomicMax(reinterpret_cast<unsigned long long*>(largest),
              static_cast<unsigned long long>(__double_as_longlong(value)));
}

// Every thread of the block calls this, for its row. each_pack(body) calls body(column, count, values) for each of the
// thread's packs, as often in every thread: `count` elements from `column` on are the row's. max_of_row(largest) turns
// the largest value of the row in this block into that of the row. `scratch` is free when all threads get here.
template <bool kAligned, class T, int kThreads, class A, class EachPack, class MaxOfRow>
__device__ void quantize_row(const Float8Result<A>& out, const RowThread<kThreads>& me, int64_t rows,
                             bool is_first_block, A (&scratch)[32], EachPack each_pack, MaxOfRow max_of_row) {
  const auto larger_one = [](A a, A b) { return larger(a, b); };
  const bool is_row = me.row < rows, of_block = out.scaling == Scaling::block;
  A scale = 1;
  if (out.given && !of_block) {
    if (is_row) scale = out.given[out.scale_place(me.row, 0)];
  } else if (out.scaling == Scaling::row || out.finds_largest) {
    A largest = 0;
    each_pack(
        [&](auto, auto count, const auto& values) { largest = larger(largest, largest_of<kAligned>(values, count)); });
    if (out.finds_largest) {  // the first of two passes over a tensor
      largest = among_threads<32>(32, largest, scratch, larger_one);
      if (threadIdx.x % 32 == 0) raise_to(out.largest, largest);
      return;
    }
    scale = out.scale_of(max_of_row(row_reduce(me, largest, scratch, larger_one)));
    if (is_row && is_first_block && me.index == 0) out.scales[me.row] = scale;
  } else if (out.scaling == Scaling::tensor) {
    scale = out.scale_of(*out.largest);
    if (blockIdx.x == 0 && threadIdx.x == 0) *out.scales = scale;
  }

  const A inverse_of_row = A(1) / scale;
  uint8_t* row = out.y + me.row * out.columns;
  each_pack([&](auto column, auto count, const auto& values) {
    A inverse = inverse_of_row;
    if (of_block) {
      A of_this = 1;
      const int64_t place = out.scale_place(me.row, column);
      if (out.given) {
        if (count > 0) of_this = out.given[place];
      } else {
        constexpr int kGroup = kScaleThreads<T>;
        if constexpr (kGroup > 32) __syncthreads();  // the scratch of the pack before
        const A largest = largest_of<kAligned>(values, count);
        of_this = out.scale_of(among_threads<kGroup>(kGroup, largest, scratch, larger_one));
        if (count > 0 && column % kScaleBlock == 0) out.scales[place] = of_this;
      }
      inverse = A(1) / of_this;
    }
    if (out.is_e5m2)
      store_float8s<kAligned, true>(values, inverse, row + column, count);
    else
      store_float8s<kAligned, false>(values, inverse, row + column, count);
  });
}

// Runs the kernels of a result: one pass, or two over a tensor whose scale follows from all of it. run(result, is_last)
// launches a kernel that calls quantize_row(), with at least one block.
template <class A, class Run>
Status quantize(const Context& context, const Float8Result<A>& result, Run run) {
  if (result.is_of_all()) {
    Float8Result<A> first = result;
    first.finds_largest = true;
    const auto stream = static_cast<cudaStream_t>(context.stream);
    FUSEDOPS_TRY(check(cudaMemsetAsync(result.largest, 0, sizeof(A), stream), "clearing the largest value"));
    FUSEDOPS_TRY(run(first, false));
  }
  return run(result, true);
}

}  // namespace fusedops::cuda
