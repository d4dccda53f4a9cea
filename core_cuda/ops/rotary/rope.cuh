// Rotation of pairs in registers, shared by the operators with a rotary embedding.
#pragma once

#include "core/cuda/pack.cuh"
#include "core/cuda/rounding.cuh"
#include "ops/rotary/rope.h"

namespace fusedops::cuda {

// kCount elements as they are stored: one, or whole packs.
template <class T, int kCount>
struct Stored {
  // Elements beyond the `count` that exist are not used. Aligned packs are whole or absent.
  template <bool kAligned>
  __device__ void load(const T* from, int64_t count) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t behind = count - p * kPackSize<T>;
      if constexpr (kCount > 1)
        packs[p] = load_row_pack<kAligned>(from + p * kPackSize<T>, behind);
      else
        packs[p].values[0] = count > 0 ? from[0] : T{};
    }
  }

  __device__ compute_t<T> operator[](int i) const {
    if constexpr (kCount > 1)
      return element(packs[i / kPackSize<T>], i % kPackSize<T>);
    else
      return to_compute(packs[0].values[0]);
  }

  static constexpr int kPacks = kCount > 1 ? kCount / kPackSize<T> : 1;
  Pack<T> packs[kPacks];
};

// Stores an element or a pack.
template <bool kAligned, int kCount, class T>
__device__ void store(const compute_t<T> (&from)[kCount], T* to) {
  if constexpr (kCount > 1)
    store_pack<kAligned>(rounded<T>(from), to, kPackSize<T>);
  else
    to[0] = from_compute<T>(from[0]);
}

// Rotates kWidth pairs in two packs: pair p is element p of both or, if interleaved, two neighbours.
template <bool kInterleaved, int kWidth, class A, class In, class Angles>
__device__ void rotate(const In (&in)[2], const Angles& cos, const Angles& sin, bool inverse, A (&out)[2][kWidth]) {
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
