// Packs: 16-byte accesses, the widest of a thread, which are needed to reach memory bandwidth.
#pragma once

#include <cstdint>

#include "core/common/numeric.h"

namespace fusedops::cuda {

template <class T>
inline constexpr int kPackSize = 16 / sizeof(T);

template <class T>
struct alignas(16) Pack {
  T values[kPackSize<T>];
};

// Element i, a compile-time constant. 16-bit elements are extracted from their word without a register of their own.
template <class T>
__device__ compute_t<T> element(const Pack<T>& pack, int i) {
  if constexpr (sizeof(T) == 2) {
    const uint32_t word = reinterpret_cast<const uint32_t*>(&pack)[i / 2];
    if constexpr (std::is_same_v<T, bf16>)
      return __uint_as_float(i % 2 ? word & 0xffff0000 : word << 16);
    else
      return __half2float(__ushort_as_half(static_cast<uint16_t>(i % 2 ? word >> 16 : word & 0xffff)));
  } else {
    return pack.values[i];
  }
}

// Rounds to nearest even; two 16-bit elements take one instruction.
template <class T>
__device__ Pack<T> rounded(const compute_t<T> (&values)[kPackSize<T>]) {
  Pack<T> pack;
#pragma unroll
  for (int i = 0; i < kPackSize<T>; i += 2) {
    if constexpr (std::is_same_v<T, bf16>)
      *reinterpret_cast<__nv_bfloat162*>(&pack.values[i]) = __floats2bfloat162_rn(values[i], values[i + 1]);
    else if constexpr (std::is_same_v<T, f16>)
      *reinterpret_cast<__half2*>(&pack.values[i]) = __floats2half2_rn(values[i], values[i + 1]);
    else
      pack.values[i] = values[i], pack.values[i + 1] = values[i + 1];
  }
  return pack;
}

// Hides the contents of a pack from the compiler. It would otherwise keep the converted elements, in twice the
// registers of 16-bit ones, instead of converting them again.
template <class T>
__device__ void forget(Pack<T>& pack) {
  if constexpr (sizeof(T) == 2) {
    int4& words = *reinterpret_cast<int4*>(&pack);
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
  }
}

inline bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// A load of a pack at any address, from the two aligned 16-byte words around it. Bytes before the pack are in the same
// allocation. If the bytes behind it are not among the `count` elements, the elements are loaded one by one.
template <class T>
class UnalignedPack {
 public:
  __device__ void begin(const T* from, int64_t count) {
    from_ = from;
    count_ = count;
    const auto* const words = reinterpret_cast<const int4*>(reinterpret_cast<uintptr_t>(from) - offset());
    if (is_whole()) low_ = __ldg(words);
    if (is_whole() && offset()) high_ = __ldg(words + 1);
  }

  __device__ Pack<T> end() const {
    Pack<T> pack;
    if (is_whole()) {
      shift(reinterpret_cast<uint32_t*>(&pack));
    } else {
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) pack.values[i] = i < count_ ? from_[i] : T{};
    }
    return pack;
  }

 private:
  __device__ int offset() const { return static_cast<int>(reinterpret_cast<uintptr_t>(from_) % 16); }
  __device__ bool is_whole() const { return count_ >= (offset() ? 32 - offset() : 16) / int(sizeof(T)); }

  __device__ void shift(uint32_t* to) const {
    uint32_t from[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) from[i] = reinterpret_cast<const uint32_t*>(i < 4 ? &low_ : &high_)[i % 4];
#pragma unroll
    for (int i = 0; i < 6; ++i) from[i] = offset() & 8 ? from[i + 2] : from[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) from[i] = offset() & 4 ? from[i + 1] : from[i];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[i] = sizeof(T) < 4 ? __funnelshift_r(from[i], from[i + 1], 8 * (offset() & 2)) : from[i];
  }

  const T* from_;
  int64_t count_;
  int4 low_ = {}, high_ = {};
};

// Loads elements [0, count) of a pack, followed by zeros. One access if the pack is whole and aligned.
template <bool kAligned, class T>
__device__ Pack<T> load_pack(const T* from, int64_t count) {
  if constexpr (!kAligned) {
    UnalignedPack<T> unaligned;
    unaligned.begin(from, count);
    return unaligned.end();
  } else {
    Pack<T> pack;
    if (count >= kPackSize<T>) {
      *reinterpret_cast<int4*>(&pack) = __ldg(reinterpret_cast<const int4*>(from));
    } else {
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) pack.values[i] = i < count ? from[i] : T{};
    }
    return pack;
  }
}

// Stores a whole pack in global memory, in one access. An assignment is four stores at first, which the compiler joins
// only if it sees that they are adjacent; it often does not where addresses are products.
template <class T>
__device__ void store_whole(const Pack<T>& pack, T* to) {
  if constexpr (std::is_same_v<T, double>) {
    asm volatile("st.global.v2.f64 [%0], {%1, %2};" ::"l"(to), "d"(pack.values[0]), "d"(pack.values[1]) : "memory");
  } else {
    const int4 words = *reinterpret_cast<const int4*>(&pack);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y), "r"(words.z),
                 "r"(words.w)
                 : "memory");
  }
}

// Unaligned whole packs of 16-bit elements are stored as far as possible in aligned 4-byte words.
template <bool kAligned, class T>
__device__ void store_pack(const Pack<T>& pack, T* to, int64_t count) {
  if (kAligned && count >= kPackSize<T>) return store_whole(pack, to);
  if constexpr (!kAligned && sizeof(T) == 2) {
    if (count >= kPackSize<T>) {
      const auto* const from = reinterpret_cast<const uint32_t*>(&pack);
      const bool odd = reinterpret_cast<uintptr_t>(to) % 4;
      auto* const words = reinterpret_cast<uint32_t*>(to + odd);
      if (odd) to[0] = pack.values[0], to[kPackSize<T> - 1] = pack.values[kPackSize<T> - 1];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i < 3 || !odd) words[i] = odd ? __funnelshift_r(from[i], from[(i + 1) % 4], 16) : from[i];
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kPackSize<T>; ++i)
    if (i < count) to[i] = pack.values[i];
}

// load_pack() for rows of whole packs, if aligned; `other` past their end. One predicate replaces branches, which would
// keep the compiler from issuing all loads before the first use. Unaligned elements wider than 16 bits are loaded one
// by one: from the cache, four loads are faster than two and a shift.
template <bool kAligned, class T>
__device__ Pack<T> load_row_pack(const T* from, int64_t count, Pack<T> other = {}) {
  if constexpr (!kAligned && sizeof(T) == 2) return load_pack<false>(from, count);
  if constexpr (!kAligned) {
#pragma unroll
    for (int i = 0; i < kPackSize<T>; ++i) other.values[i] = i < count ? from[i] : T{};
  } else if constexpr (std::is_same_v<T, double>) {
    // As doubles: four words would be loaded to one place and moved to another, and the next load wait for that.
    if (count > 0) {
      const double2 pair = __ldg(reinterpret_cast<const double2*>(from));
      other.values[0] = pair.x, other.values[1] = pair.y;
    }
  } else if (count > 0) {
    *reinterpret_cast<int4*>(&other) = __ldg(reinterpret_cast<const int4*>(from));
  }
  return other;
}

template <bool kAligned, class T>
__device__ void store_row_pack(const Pack<T>& pack, T* to, int64_t count) {
  if constexpr (!kAligned) return store_pack<false>(pack, to, count);
  if (count > 0) store_whole(pack, to);
}

// Loads a pack of a parameter from element `at` on, of which `count` exist. Aligned packs are whole or absent, as in
// rows of whole packs. Every value is `absent` if there is no such parameter.
template <bool kAligned, class T>
__device__ void load_parameter(const Parameter& parameter, int64_t at, int64_t count, compute_t<T> absent,
                               compute_t<T> (&values)[kPackSize<T>]) {
  constexpr int kPack = kPackSize<T>;
  if (!parameter.data) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) values[i] = absent;
    return;
  }
  if constexpr (sizeof(T) == 2) {
    if (parameter.is_f32) {
      constexpr int kHalf = kPackSize<float>;
      const float* data = static_cast<const float*>(parameter.data) + at;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Pack<float> pack = load_row_pack<kAligned>(data + half * kHalf, count - half * kHalf);
#pragma unroll
        for (int i = 0; i < kHalf; ++i) values[half * kHalf + i] = pack.values[i];
      }
      return;
    }
  }
  const Pack<T> pack = load_row_pack<kAligned>(static_cast<const T*>(parameter.data) + at, count);
#pragma unroll
  for (int i = 0; i < kPack; ++i) values[i] = element(pack, i);
}

// Prefetches into the L2 cache the data of a later load_parameter(). It needs no register.
template <class T>
__device__ void prefetch_parameter(const Parameter& parameter, int64_t at) {
  if (!parameter.data) return;
  const int64_t size = parameter.is_f32 ? sizeof(float) : sizeof(T);
  asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(parameter.data) + at * size));
}

// Values of absent parameters. Adding negative zero changes nothing, not even the sign of a zero.
inline constexpr float kAbsentWeight = 1;
inline constexpr float kAbsentBias = -0.0f;
inline constexpr float kNoOffset = -0.0f;

// One pack of a parameter, loaded early and held in registers: as stored, or widened. Widening takes twice the
// registers of 16-bit elements. It is needed for a float32 parameter with a 16-bit T, or spares repeated conversions.
template <bool kAligned, bool kWide, class T>
class HeldParameter {
  static_assert(kAligned || kWide);  // absent parameters are recognized in whole packs only

 public:
  using A = compute_t<T>;

  __device__ void load(const Parameter& parameter, int64_t at, int64_t count, A absent, A offset = A(kNoOffset)) {
    if constexpr (kWide) {
      load_parameter<kAligned, T>(parameter, at, count, absent, values_);
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) values_[i] += offset;
    } else {
      Pack<T> other;
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) other.values[i] = from_compute<T>(absent);
      const T* data = static_cast<const T*>(parameter.data);
      values_ = load_row_pack<kAligned>(data + at, data ? count : 0, other);
    }
  }

  __device__ A operator[](int i) const {
    if constexpr (kWide)
      return values_[i];
    else
      return element(values_, i);
  }

 private:
  std::conditional_t<kWide, A[kPackSize<T>], Pack<T>> values_;
};

// True if every row starts at an aligned address and ends with a whole pack, or the tensor is absent.
template <class T>
bool are_rows_aligned(int64_t size, const T* data, int64_t stride) {
  return is_aligned(data) && (!data || (stride % kPackSize<T> == 0 && size % kPackSize<T> == 0));
}

}  // namespace fusedops::cuda
