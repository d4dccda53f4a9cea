#include "core/cuda/elementwise.cuh"
#include "ops/elementwise/polynomial_activation.h"

namespace fusedops {

Status polynomial_activation_cuda(const Call& call) {
  return with_polynomial(coefficients_of<kPolynomialActivation>(call.attributes), [&](const auto& polynomial) {
    return cuda::elementwise<kPolynomialActivation>(call, polynomial);
  });
}

Status polynomial_activation_backward_cuda(const Call& call) {
  return with_polynomial(derivative(coefficients_of<kPolynomialActivationBackward>(call.attributes)),
                         [&](const auto& slope) {
                           return cuda::elementwise<kPolynomialActivationBackward>(call, PolynomialBackward{slope});
                         });
}

}  // namespace fusedops
