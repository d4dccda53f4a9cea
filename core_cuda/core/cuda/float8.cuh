// Rounding of rows to 8 bits by the threads of a row: core/common/float8.h.
//
// Limit: memory bandwidth, with few instructions to spare, since the result has one byte per element. Uniform decisions
// such as the format are therefore made once for all packs of a thread. The values of a row held in registers are
// computed once, those of a longer row again in each pass.
#pragma once

#include <cuda_bf16.h>

#include "core/common/float8.h"
#include "core/common/formulas.h"
#include "core/cuda/row_variants.cuh"

namespace fusedops::cuda {

// The number of neighbouring threads whose packs make up one scale block.
template <class T>
inline constexpr int kScaleThreads = kScaleBlock / kPackSize<T>;

__device__ inline float larger(float a, float b) { return fmaxf(a, b); }  // ignores NaN
__device__ inline double larger(double a, double b) { return fmax(a, b); }

// The positions of a thread's packs in its row: first column, step, and the end of the row (0 past the last row).
template <class Index>
struct PackPlaces {
  Index first, step, end;

  __device__ Index column(int p) const { return first + p * step; }
  __device__ Index count(int p) const { return end - column(p); }
};

// The largest absolute value among elements [0, count) of a pack; aligned packs are whole. NaN is ignored.
template <bool kAligned, class A, int kPack>
__device__ A largest_of(const A (&values)[kPack], int64_t count) {
  A largest[kPack];
#pragma unroll
  for (int i = 0; i < kPack; ++i) largest[i] = kAligned || i < count ? activations::magnitude(values[i]) : A(0);
#pragma unroll
  for (int half = kPack / 2; half > 0; half /= 2)
#pragma unroll
    for (int i = 0; i < half; ++i) largest[i] = larger(largest[i], largest[i + half]);
  return count > 0 ? larger(largest[0], A(0)) : A(0);
}

// The largest value of a warp. Values are not negative, so their bits are ordered like the values.
__device__ inline float largest_of_warp(float value) {
#if __CUDA_ARCH__ >= 800
  return __uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(value)));
#else
  return reduce_threads<32>(32, value, static_cast<float*>(nullptr), [](float a, float b) { return larger(a, b); });
#endif
}
__device__ inline double largest_of_warp(double value) {
  return reduce_threads<32>(32, value, static_cast<double*>(nullptr), [](double a, double b) { return larger(a, b); });
}

// The largest value among the row's threads in this block; `scratch` as in row_reduce().
template <int kThreads, class A>
__device__ A largest_of_row(const RowThread<kThreads>& me, A value, A (&scratch)[32]) {
  if (me.threads < 32) return row_reduce(me, value, scratch, [](A a, A b) { return larger(a, b); });
  value = largest_of_warp(value);
  if (me.threads == 32) return value;
  const int warps = me.threads / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return largest_of_warp(scratch[(warp & -warps) + (lane & (warps - 1))]);
}

__device__ inline void raise_to(float* largest, float value) {
  if (value > *static_cast<volatile float*>(largest))
    atomicMax(reinterpret_cast<unsigned*>(largest), __float_as_uint(value));
}
__device__ inline void raise_to(double* largest, double value) {
  if (value > *static_cast<volatile double*>(largest))
    atomicMax(reinterpret_cast<unsigned long long*>(largest),
              static_cast<unsigned long long>(__double_as_longlong(value)));
}

// Converts four numbers to bytes, the first in the lowest byte.
template <bool kIsE5m2>
__device__ uint32_t pack_float8x4(const float (&x)[4]) {
#if __CUDA_ARCH__ >= 890
  uint32_t bytes;  // one statement, so that the second conversion merges the halves
  if constexpr (kIsE5m2)
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e5m2x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e5m2x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n}"
        : "=r"(bytes)
        : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
  else
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n}"
        : "=r"(bytes)
        : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
  return bytes;
#else
  using Format = std::conditional_t<kIsE5m2, E5m2, E4m3>;
  uint32_t bytes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) bytes |= uint32_t(float8_from<Format>(x[i])) << (8 * i);
  return bytes;
#endif
}

__device__ inline float approximate_inverse(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}

// A float on the same side of every number of 8 significant bits as value / scale, or that number itself. All ties of
// the formats are such numbers. It calls no division, around which registers would have to be saved.
__device__ inline float same_side_quotient(float value, float scale) {
  const float magnitude = fabsf(scale), up = magnitude < 0x1p-60f ? 0x1p64f : magnitude > 0x1p60f ? 0x1p-64f : 1.0f;
  value *= up, scale *= up;
  const float nearest = __bfloat162float(__float2bfloat16_rn(value * approximate_inverse(scale)));
  // Exact: the leading ones of the 8 + 24 bits of nearest * scale cancel. Infinite or NaN if the quotient is infinite.
  const float remainder = fmaf(-nearest, scale, value), step = copysignf(0x1p-12f, scale);
  const bool is_inexact = fabsf(remainder) > 0 && fabsf(remainder) < fabsf(value);
  return is_inexact ? fmaf(copysignf(nearest, remainder), step, nearest) : nearest;
}

// Divides by a scale and rounds once to 8 bits. A true division would dominate the kernel, so it rounds two products
// that bound the quotient. If both give the same bytes, so does the quotient. They differ only if a tie of the format
// lies between them: for a few quotients in 100,000, or for values of few significant bits.
template <class A>
class Divisor {
 public:
  __device__ explicit Divisor(A scale) : scale_(scale) {
    constexpr float kMargin = 0x1p-20f;  // several times the error of the inverse and of a product
    const float magnitude = fabsf(scale), inverse = approximate_inverse(scale);
    low_ = inverse * (1 - kMargin), high_ = inverse * (1 + kMargin);
    // The inverse of a power of two is exact. 16-bit values are often ties then.
    const uint32_t bits = __float_as_uint(magnitude);
    if ((bits & 0x007fffff) == 0) low_ = high_ = copysignf(__uint_as_float(0x7f000000 - bits), scale);
    // The inverse may leave the range of float32; the bounds are trivial then.
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (!(magnitude >= 0x1p-100f && magnitude <= 0x1p100f)) low_ = 0, high_ = kInfinity;
  }

  template <bool kIsE5m2>
  __device__ uint32_t divide(const A (&values)[4]) const {
    float low[4], high[4], exact[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) low[i] = values[i] * low_, high[i] = values[i] * high_;
    const uint32_t bytes = pack_float8x4<kIsE5m2>(low);
    if (bytes == pack_float8x4<kIsE5m2>(high)) return bytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) exact[i] = same_side_quotient(values[i], scale_);
    return pack_float8x4<kIsE5m2>(exact);
  }

 private:
  A scale_;
  float low_, high_;  // bounds of the inverse
};

template <>
class Divisor<double> {
 public:
  __device__ explicit Divisor(double scale) : scale_(scale) {}

  template <bool kIsE5m2>
  __device__ uint32_t divide(const double (&values)[4]) const {
    float quotients[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) quotients[i] = to_odd(odd_quotient(values[i], scale_));
    return pack_float8x4<kIsE5m2>(quotients);
  }

 private:
  double scale_;
};

template <bool kAligned, bool kIsE5m2, class A, int kPack>
__device__ void store_float8s(const A (&values)[kPack], A scale, uint8_t* to, int64_t count) {
  static_assert(!kAligned || kPack % 4 == 0);
  const Divisor<A> divisor(scale);
  struct alignas(kPack < 4 ? 4 : kPack) {
    uint32_t words[(kPack + 3) / 4];
  } pack;
#pragma unroll
  for (int i = 0; i < kPack; i += 4) {
    A four[4] = {};
#pragma unroll
    for (int k = 0; k < 4 && i + k < kPack; ++k) four[k] = values[i + k];
    pack.words[i / 4] = divisor.template divide<kIsE5m2>(four);
  }
  if constexpr (kAligned) {
    if (count > 0) *reinterpret_cast<decltype(pack)*>(to) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      if (i < count) to[i] = static_cast<uint8_t>(pack.words[i / 4] >> (8 * (i % 4)));
  }
}

// The block scales of each of the thread's packs.
template <bool kAligned, class T, class A, int kPacks, int kPack, class Index>
__device__ void block_scales(const Float8Result<A>& out, int64_t row, const A (&values)[kPacks][kPack],
                             const PackPlaces<Index>& at, A (&scratch)[32], A (&scales)[kPacks]) {
  constexpr int kGroup = kScaleThreads<T>;
  const int lane = threadIdx.x % 32;
  // The scale of pack p, shared by this thread and its neighbours in the scale block.
  const auto scale_of = [&](int p, A largest, bool writes) {
    const int64_t block = at.column(p) / kScaleBlock, place = row * scale_blocks(out.columns) + block;
    const bool is_in_row = block * kScaleBlock < at.end;
    A scale = 1;
    if (!out.given) scale = out.scale_of(largest);
    if (out.given && is_in_row) scale = out.given[place];
    if (!out.given && is_in_row && writes) out.scales[place] = scale;
    return scale;
  };
  A largest[kPacks] = {};
  if (!out.given) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) largest[p] = largest_of<kAligned>(values[p], at.count(p));
  }
  if constexpr (kGroup > 32) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      __syncthreads();  // `scratch` may still be read for the previous pack
      const A of_group = reduce_threads<kGroup>(kGroup, largest[p], scratch, [](A a, A b) { return larger(a, b); });
      scales[p] = scale_of(p, of_group, threadIdx.x % kGroup == 0);
    }
  } else {
    // In each of the first exchanges a thread passes half of its packs to a neighbour, so each of kPacks neighbours
    // computes one scale with one division. They then exchange the scales.
    int mine = 0;
#pragma unroll
    for (int half = kPacks / 2, offset = 1; half > 0; half /= 2, offset *= 2) {
      const bool is_upper = lane & offset;
      mine += is_upper ? half : 0;
#pragma unroll
      for (int p = 0; p < half; ++p) {
        const A kept = is_upper ? largest[p + half] : largest[p], sent = is_upper ? largest[p] : largest[p + half];
        largest[p] = larger(kept, exchanged(sent, offset));
      }
    }
#pragma unroll
    for (int offset = kPacks; offset < kGroup; offset *= 2)
      largest[0] = larger(largest[0], exchanged(largest[0], offset));
    const A scale = scale_of(mine, largest[0], lane % kGroup < kPacks);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      int owner = 0;
#pragma unroll
      for (int half = kPacks / 2, offset = 1; half > 0; half /= 2, offset *= 2) owner += p & half ? offset : 0;
      scales[p] = __shfl_sync(0xffffffff, scale, (lane & -kPacks) + owner);
    }
  }
}

// Quantizes the rows of a block; every thread calls it for its row. each_tile(body) calls body(values, places) for each
// tile with the thread's values, equally often in every thread. max_of_row(largest) reduces the block's largest value
// of the row to that of the whole row. `scratch` must be free when all threads arrive here.
template <bool kAligned, class T, int kThreads, class A, class EachTile, class MaxOfRow>
__device__ void quantize_row(const Float8Result<A>& out, const RowThread<kThreads>& me, int64_t rows,
                             bool is_first_block, A (&scratch)[32], EachTile each_tile, MaxOfRow max_of_row) {
  const bool is_row = me.row < rows, of_block = out.scaling == Scaling::block;
  A scale = 1;
  if (out.given && !of_block) {
    if (is_row) scale = out.given[out.scale_place(me.row, 0)];
  } else if (out.scaling == Scaling::row || out.finds_largest) {
    A largest = 0;
    each_tile([&]<int kPacks, int kPack>(const A(&values)[kPacks][kPack], const auto& at) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) largest = larger(largest, largest_of<kAligned>(values[p], at.count(p)));
    });
    if (out.finds_largest) {  // the first of two passes over a tensor
      largest = largest_of_warp(largest);
      if (threadIdx.x % 32 == 0) raise_to(out.largest, largest);
      return;
    }
    scale = out.scale_of(max_of_row(largest_of_row(me, largest, scratch)));
    if (is_row && is_first_block && me.index == 0) out.scales[me.row] = scale;
  } else if (out.scaling == Scaling::tensor) {
    scale = out.scale_of(*out.largest);
    if (blockIdx.x == 0 && threadIdx.x == 0) *out.scales = scale;
  }

  uint8_t* row = out.y + me.row * out.columns;
  each_tile([&]<int kPacks, int kPack>(const A(&values)[kPacks][kPack], const auto& at) {
    A scales[kPacks];
    if (of_block) block_scales<kAligned, T>(out, me.row, values, at, scratch, scales);
    const auto store = [&](auto is_e5m2) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
        store_float8s<kAligned, decltype(is_e5m2)::value>(values[p], of_block ? scales[p] : scale, row + at.column(p),
                                                          at.count(p));
    };
    if (out.is_e5m2)
      store(std::true_type());
    else
      store(std::false_type());
  });
}

// Launches the passes over a result: one, or two if the scale is computed from the whole tensor. run(result, is_last)
// launches a kernel that calls quantize_row(), with at least one block.
template <class A, class Run>
Status quantize(const Context& context, const Float8Result<A>& result, Run run) {
  if (result.has_tensor_scale()) {
    Float8Result<A> first = result;
    first.finds_largest = true;
    const auto stream = static_cast<cudaStream_t>(context.stream);
    FUSEDOPS_TRY(check(cudaMemsetAsync(result.largest, 0, sizeof(A), stream), "clearing the largest value"));
    FUSEDOPS_TRY(run(first, false));
  }
  return run(result, true);
}

}  // namespace fusedops::cuda
