// polynomial_activation: y = c[0] + c[1] x + ... by Horner's rule. Its gradient is dy times the derivative.
#pragma once

#include <string>
#include <vector>

#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Signature kPolynomialActivation{
    .name = "polynomial_activation",
    .inputs = {{"x"}},
    .outputs = {{"y", "x"}},
    .attributes = {{"coefficients", Type::f64s, "[1.0, 1.0, 1.0]"}},
    .axes = {{"... -> ..."}},
};

inline constexpr Signature kPolynomialActivationBackward{
    .name = "polynomial_activation_backward",
    .inputs = {{"dy"}, {"x"}},
    .outputs = {{"dx", "x"}},
    .attributes = {{"coefficients", Type::f64s, "[1.0, 1.0, 1.0]"}},
    .axes = {{"..., ... -> ..."}},
};

template <const Signature& kOp>
const std::vector<double>& coefficients_of(const Attributes& attributes) {
  return attributes[attribute_of<std::vector<double>>(kOp, "coefficients")];
}

// The number of coefficients is part of the type. A run-time count would make the kernel compute-bound, and zero
// padding would turn an infinite x into NaN.
template <int kCount>
struct Polynomial {
  double coefficients[kCount];

  template <class T>
  FUSEDOPS_HD auto prepared() const {
    using A = compute_t<T>;
    struct Function {
      A c[kCount];
      FUSEDOPS_HD A operator()(A x) const {
        A y = c[kCount - 1];
        for (int k = kCount - 2; k >= 0; --k) y = y * x + c[k];
        return y;
      }
    } function;
    for (int k = 0; k < kCount; ++k) function.c[k] = A(coefficients[k]);
    return function;
  }
};

template <int kCount>
struct PolynomialBackward {
  Polynomial<kCount> derivative;

  template <class T>
  FUSEDOPS_HD auto prepared() const {
    using A = compute_t<T>;
    return [slope = derivative.template prepared<T>()](A dy, A x) { return dy * slope(x); };
  }
};

inline constexpr int kMaxCoefficients = 8;

// Calls body(Polynomial<n>) for n coefficients, 1 <= n <= kMaxCoefficients.
template <int kCount = 1, class Body>
Status with_polynomial(const std::vector<double>& coefficients, Body&& body) {
  if (coefficients.size() == kCount) {
    Polynomial<kCount> polynomial;
    for (int k = 0; k < kCount; ++k) polynomial.coefficients[k] = coefficients[k];
    return body(polynomial);
  }
  if constexpr (kCount < kMaxCoefficients) return with_polynomial<kCount + 1>(coefficients, body);
  return Status::error("fusedops: no polynomial has ", std::to_string(coefficients.size()), " coefficients");
}

// The coefficients of the derivative: [c1, 2 c2, ...], or [0] for a constant.
std::vector<double> derivative(const std::vector<double>& coefficients);

Operator polynomial_activation();
FUSEDOPS_CUDA_KERNEL Status polynomial_activation_cuda(const Call& call);

Operator polynomial_activation_backward();
FUSEDOPS_CUDA_KERNEL Status polynomial_activation_backward_cuda(const Call& call);

}  // namespace fusedops
