// scale: y = x * factor. It is axpby without b, and shares its backward.
#pragma once

#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Signature kScale{
    .name = "scale",
    .inputs = {{"x"}, {"factor", Kind::scalar}},
    .outputs = {{"y", "x"}},
    .axes = {{"..., 1 -> ..."}},
};

struct Scale {
  Scalar factor;

  template <class T>
  FUSEDOPS_HD auto prepared() const {
    return [factor = factor.get<T>()](compute_t<T> x) { return x * factor; };
  }
};

Operator scale();
FUSEDOPS_CUDA_KERNEL Status scale_cuda(const Call& call);

}  // namespace fusedops
