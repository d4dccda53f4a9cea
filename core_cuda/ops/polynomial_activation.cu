#include "core/elementwise.cuh"
#include "ops/polynomial_activation.h"

namespace fusedops {

Status polynomial_activation_cuda(const Call& call) {
  return cuda::elementwise(call, Polynomial(call.attributes[0].f64s), 0);
}

Status polynomial_activation_backward_cuda(const Call& call) {
  return cuda::elementwise(call, PolynomialBackward{Polynomial(call.attributes[0].f64s).derivative()}, 0, 1);
}

}  // namespace fusedops
