// relu: y = max(x, 0). NaN is propagated, and its gradient passes; the gradient at 0 is 0.
#pragma once

#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Signature kRelu{
    .name = "relu",
    .inputs = {{"x"}},
    .outputs = {{"y", "x"}},
    .axes = {{"... -> ..."}},
};

struct Relu {
  template <class T>
  FUSEDOPS_HD auto prepared() const {
    using A = compute_t<T>;
    return [](A x) { return x <= A(0) ? A(0) : x; };
  }
};

inline constexpr Signature kReluBackward{
    .name = "relu_backward",
    .inputs = {{"dy"}, {"y"}},
    .outputs = {{"dx", "y"}},
    .axes = {{"..., ... -> ..."}},
};

// Computed from y instead of x: the next layer saves y anyway, so x can be freed.
struct ReluBackward {
  template <class T>
  FUSEDOPS_HD auto prepared() const {
    using A = compute_t<T>;
    return [](A dy, A y) { return y <= A(0) ? A(0) : dy; };
  }
};

Operator relu();
FUSEDOPS_CUDA_KERNEL Status relu_cuda(const Call& call);

Operator relu_backward();
FUSEDOPS_CUDA_KERNEL Status relu_backward_cuda(const Call& call);

}  // namespace fusedops
