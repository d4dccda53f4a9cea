// scale: y = x * factor. It is axpby without b, and shares its backward.
#pragma once

#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

struct Scale {
  enum : int { kX, kFactor };
  Scalar factor;

  template <class T>
  FUSEDOPS_HD auto prepared() const {
    return [factor = factor.get<T>()](compute_t<T> x) { return x * factor; };
  }
};

// (x, factor) -> y
const Operator& scale();
FUSEDOPS_CUDA_KERNEL Status scale_cuda(const Call& call);

}  // namespace fusedops
