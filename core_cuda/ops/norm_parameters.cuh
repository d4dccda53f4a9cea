// How the kernels of both norms hold a weight and a bias.
#pragma once

#include "core/pack.cuh"
#include "ops/norm.h"

namespace fusedops::cuda {

// One pack of a parameter, loaded before it is needed and kept: as it lies in memory, or, if kMixed, widened from what
// may be float32 beside a 16-bit T.
template <bool kAligned, bool kMixed, class T>
class HeldParameter {
 public:
  using A = compute_t<T>;

  __device__ void load(const Parameter& parameter, int64_t at, int64_t count) {
    if constexpr (kMixed)
      load_parameter<kAligned, T>(parameter, at, count, A(0), values_);
    else if (parameter.data)
      pack_ = load_pack<kAligned>(static_cast<const T*>(parameter.data) + at, count);
  }

  // Element i, if there is such a parameter.
  __device__ A operator[](int i) const {
    if constexpr (kMixed)
      return values_[i];
    else
      return element(pack_, i);
  }

 private:
  struct Nothing {};
  std::conditional_t<kMixed, Nothing, Pack<T>> pack_;
  std::conditional_t<kMixed, A[kPackSize<T>], Nothing> values_;
};

}  // namespace fusedops::cuda
