// Rotation of pairs in registers, shared by the operators with a rotary embedding.
#pragma once

#include "core/cuda/pack.cuh"
#include "core/cuda/rounding.cuh"
#include "ops/rotary/rope.h"

namespace fusedops::cuda {

// Loads kCount elements in the compute type.
template <bool kAligned, int kCount, class T>
__device__ void load(const T* from, compute_t<T> (&to)[kCount]) {
  if constexpr (kAligned) {
#pragma unroll
    for (int p = 0; p < kCount; p += kPackSize<T>) {
      const Pack<T> pack = load_pack<true>(from + p, kPackSize<T>);
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) to[p + i] = to_compute(pack.values[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = to_compute(from[i]);
  }
}

template <bool kAligned, int kCount, class T>
__device__ void store(const compute_t<T> (&from)[kCount], T* to) {
  if constexpr (kAligned) {
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < kCount; ++i) pack.values[i] = from_compute<T>(from[i]);
    store_pack<true>(pack, to, kCount);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = from_compute<T>(from[i]);
  }
}

// Rotates kWidth pairs in two packs: pair p is element p of both or, if interleaved, two neighbours.
template <bool kInterleaved, int kWidth, class A>
__device__ void rotate(const A (&in)[2][kWidth], const A (&cos)[kWidth], const A (&sin)[kWidth], bool inverse,
                       A (&out)[2][kWidth]) {
#pragma unroll
  for (int p = 0; p < kWidth; ++p) {
    const int at = kInterleaved ? 2 * p : p, other = kInterleaved ? at + 1 : p + kWidth;
    const A a = in[at / kWidth][at % kWidth], b = in[other / kWidth][other % kWidth];
    const A s = inverse ? -sin[p] : sin[p];
    out[at / kWidth][at % kWidth] = sum(product(a, cos[p]), -product(b, s));
    out[other / kWidth][other % kWidth] = sum(product(b, cos[p]), product(a, s));
  }
}

// True if rows consist of whole packs of pairs and of other features.
template <class T, class Angle>
bool has_packs(const Rope<T, Angle>& call) {
  return call.half % kPackSize<T> == 0 && call.rows.size % kPackSize<T> == 0;
}

// True if every row begins at a multiple of 16 bytes.
template <class T>
bool are_aligned(const T* data, const Heads& rows) {
  bool aligned = is_aligned(data);
  for (int i = 0; i < 3; ++i) aligned = aligned && (rows.sizes[i] == 1 || rows.strides[i] % kPackSize<T> == 0);
  return aligned;
}

// True if every access to whole packs can have 16 bytes.
template <class T, class Angle>
bool are_aligned(const Rope<T, Angle>& call) {
  return are_aligned(call.x, call.rows) && is_aligned(call.y) && is_aligned(call.cos) && is_aligned(call.sin);
}

}  // namespace fusedops::cuda
