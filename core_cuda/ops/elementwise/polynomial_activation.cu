#include "core/cuda/elementwise.cuh"
#include "ops/elementwise/polynomial_activation.h"

namespace fusedops {

Status polynomial_activation_cuda(const Call& call) {
  return with_polynomial(call.attributes[0].f64s, [&](const auto& polynomial) {
    return cuda::elementwise(call, polynomial, PolynomialPlaces::kX);
  });
}

Status polynomial_activation_backward_cuda(const Call& call) {
  return with_polynomial(derivative(call.attributes[0].f64s), [&](const auto& slope) {
    return cuda::elementwise(call, PolynomialBackward{slope}, PolynomialBackwardPlaces::kDy,
                             PolynomialBackwardPlaces::kX);
  });
}

}  // namespace fusedops
