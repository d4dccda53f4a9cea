// How the kernels of both norms hold a weight and a bias.
#pragma once

#include "core/cuda/pack.cuh"
#include "ops/normalization/norm.h"

namespace fusedops::cuda {

// The values of absent parameters: adding a negative zero changes nothing, not even the sign of a zero.
inline constexpr float kAbsentWeight = 1;
inline constexpr float kAbsentBias = -0.0f;
inline constexpr float kNoOffset = -0.0f;

// One pack of a parameter, loaded before it is needed and kept: as it lies in memory, or widened, which takes twice the
// registers of 16-bit elements, because it may be float32 beside a 16-bit T, or to spare the conversions.
template <bool kAligned, bool kWide, class T>
class HeldParameter {
  static_assert(kAligned || kWide);  // packs that are not widened must be whole, or an absent parameter is not seen

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

}  // namespace fusedops::cuda
