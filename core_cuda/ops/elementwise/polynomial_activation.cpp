#include "ops/elementwise/polynomial_activation.h"

#include "core/cpu/elementwise.h"
#include "core/declaration/numbers.h"

namespace fusedops {

std::vector<double> derivative(const std::vector<double>& coefficients) {
  std::vector<double> slopes;
  for (size_t k = 1; k < coefficients.size(); ++k) slopes.push_back(static_cast<double>(k) * coefficients[k]);
  if (slopes.empty()) slopes.push_back(0.0);
  return slopes;
}

namespace {

template <const Signature& kOp>
Status rule(Rule& rule) {
  FUSEDOPS_TRY(elementwise_rule<kOp>(rule));
  const size_t count = coefficients_of<kOp>(rule.attributes).size();
  if (count >= 1 && count <= kMaxCoefficients) return {};
  return must_be(rule, "coefficients", "1 to 8 numbers", std::to_string(count));
}

Status forward_cpu(const Call& call) {
  return with_polynomial(coefficients_of<kPolynomialActivation>(call.attributes), [&](const auto& polynomial) {
    return cpu::elementwise<kPolynomialActivation>(call, polynomial);
  });
}

Status backward_cpu(const Call& call) {
  return with_polynomial(derivative(coefficients_of<kPolynomialActivationBackward>(call.attributes)),
                         [&](const auto& slope) {
                           return cpu::elementwise<kPolynomialActivationBackward>(call, PolynomialBackward{slope});
                         });
}

}  // namespace

Operator polynomial_activation() {
  return with_backward(kPolynomialActivation, kPolynomialActivationBackward,
                       {.rule = rule<kPolynomialActivation>, .cpu = forward_cpu, .cuda = polynomial_activation_cuda});
}

Operator polynomial_activation_backward() {
  return {
      kPolynomialActivationBackward,
      {.rule = rule<kPolynomialActivationBackward>, .cpu = backward_cpu, .cuda = polynomial_activation_backward_cuda}};
}

}  // namespace fusedops
