// relu: y = max(x, 0). A NaN stays NaN, and lets its gradient pass; the gradient at 0 is 0.
#pragma once

#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

struct Relu {
  enum : int { kX };

  template <class T>
  FUSEDOPS_HD auto prepared() const {
    using A = compute_t<T>;
    return [](A x) { return x <= A(0) ? A(0) : x; };
  }
};

// From y rather than x: the next layer keeps y anyway, so that x can be freed.
struct ReluBackward {
  enum : int { kDy, kY };

  template <class T>
  FUSEDOPS_HD auto prepared() const {
    using A = compute_t<T>;
    return [](A dy, A y) { return y <= A(0) ? A(0) : dy; };
  }
};

// x -> y
const Operator& relu();
FUSEDOPS_CUDA_KERNEL Status relu_cuda(const Call& call);

// (dy, y) -> dx
const Operator& relu_backward();
FUSEDOPS_CUDA_KERNEL Status relu_backward_cuda(const Call& call);

}  // namespace fusedops
