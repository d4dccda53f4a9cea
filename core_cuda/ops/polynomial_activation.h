// polynomial_activation: y = c[0] + c[1] x + ... by Horner's rule. Its gradient is dy times the derivative's
// polynomial.
#pragma once

#include <vector>

#include "core/numeric.h"
#include "core/operator.h"

namespace fusedops {

struct Polynomial {
  static constexpr int kMost = 8;
  int count;
  double coefficients[kMost];

  explicit Polynomial(const std::vector<double>& values);
  Polynomial derivative() const;

  // Unrolled with a test that is the same for all elements: a loop would cost more than memory leaves time for, and
  // padding with zeros would turn an infinite x into NaN.
  template <class T>
  FUSEDOPS_HD auto prepared() const {
    using A = compute_t<T>;
    struct Function {
      int count;
      A c[kMost];
      FUSEDOPS_HD A operator()(A x) const {
        A y = c[kMost - 1];
        for (int k = kMost - 2; k >= 0; --k) y = k + 1 < count ? y * x + c[k] : c[k];
        return y;
      }
    } function;
    function.count = count;
    for (int k = 0; k < kMost; ++k) function.c[k] = A(coefficients[k]);
    return function;
  }
};

struct PolynomialBackward {
  Polynomial derivative;

  template <class T>
  FUSEDOPS_HD auto prepared() const {
    using A = compute_t<T>;
    return [slope = derivative.prepared<T>()](A dy, A x) { return dy * slope(x); };
  }
};

// (x, *, coefficients) -> y
const Operator& polynomial_activation();
FUSEDOPS_CUDA_KERNEL Status polynomial_activation_cuda(const Call& call);

// (dy, x, *, coefficients) -> dx
const Operator& polynomial_activation_backward();
FUSEDOPS_CUDA_KERNEL Status polynomial_activation_backward_cuda(const Call& call);

}  // namespace fusedops
