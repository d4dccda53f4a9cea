// 16-byte accesses: the widest that a thread can make, and what it takes to reach memory speed.
#pragma once

#include <cstdint>

#include "core/numeric.h"

namespace fusedops::cuda {

template <class T>
inline constexpr int kPackSize = 16 / sizeof(T);

template <class T>
struct alignas(16) Pack {
  T values[kPackSize<T>];
};

inline bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Loads elements [0, count) of a pack; the rest is zero. One access if the pack is whole and its address is aligned.
template <bool kAligned, class T>
__device__ Pack<T> load_pack(const T* from, int64_t count) {
  Pack<T> pack;
  if (kAligned && count >= kPackSize<T>) {
    *reinterpret_cast<int4*>(&pack) = __ldg(reinterpret_cast<const int4*>(from));
  } else {
#pragma unroll
    for (int i = 0; i < kPackSize<T>; ++i) pack.values[i] = i < count ? from[i] : T{};
  }
  return pack;
}

template <bool kAligned, class T>
__device__ void store_pack(const Pack<T>& pack, T* to, int64_t count) {
  if (kAligned && count >= kPackSize<T>) {
    *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(&pack);
  } else {
#pragma unroll
    for (int i = 0; i < kPackSize<T>; ++i)
      if (i < count) to[i] = pack.values[i];
  }
}

// Whether every row starts at an aligned address and ends with a whole pack. An absent tensor is.
template <class T>
bool are_rows_aligned(int64_t size, const T* data, int64_t stride) {
  return is_aligned(data) && (!data || (stride % kPackSize<T> == 0 && size % kPackSize<T> == 0));
}

}  // namespace fusedops::cuda
