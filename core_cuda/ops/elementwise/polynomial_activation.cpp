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
Status few_coefficients(const Rule& rule) {
  const size_t count = coefficients_of<kOp>(rule.attributes).size();
  if (count >= 1 && count <= kMostCoefficients) return {};
  return must_be(rule, "coefficients", "1 to 8 numbers", std::to_string(count));
}

Status forward_rule(Rule& rule) {
  constexpr int kX = input_of(kPolynomialActivation, "x");
  FUSEDOPS_TRY(rule.floating(kX));
  FUSEDOPS_TRY(few_coefficients<kPolynomialActivation>(rule));
  rule.outputs[output_of(kPolynomialActivation, "y")] = rule.inputs[kX];
  return {};
}

Status forward_cpu(const Call& call) {
  return with_polynomial(coefficients_of<kPolynomialActivation>(call.attributes), [&](const auto& polynomial) {
    return cpu::elementwise<kPolynomialActivation>(call, polynomial);
  });
}

Status backward_rule(Rule& rule) {
  constexpr int kX = input_of(kPolynomialActivationBackward, "x");
  FUSEDOPS_TRY(rule.floating(kX));
  FUSEDOPS_TRY(few_coefficients<kPolynomialActivationBackward>(rule));
  FUSEDOPS_TRY(rule.same_as(input_of(kPolynomialActivationBackward, "dy"), kX));
  rule.outputs[output_of(kPolynomialActivationBackward, "dx")] = rule.inputs[kX];
  return {};
}

Status backward_cpu(const Call& call) {
  return with_polynomial(derivative(coefficients_of<kPolynomialActivationBackward>(call.attributes)),
                         [&](const auto& slope) {
                           return cpu::elementwise<kPolynomialActivationBackward>(call, PolynomialBackward{slope});
                         });
}

}  // namespace

const Operator& polynomial_activation() {
  static const Operator op{
      kPolynomialActivation,
      {.derivative = {{.op = "polynomial_activation_backward", .inputs = {"dy", "x"}, .gradients = {{"x", "dx"}}}},
       .rule = forward_rule,
       .cpu = forward_cpu,
       .cuda = polynomial_activation_cuda},
  };
  return op;
}

const Operator& polynomial_activation_backward() {
  static const Operator op{
      kPolynomialActivationBackward,
      {.rule = backward_rule, .cpu = backward_cpu, .cuda = polynomial_activation_backward_cuda},
  };
  return op;
}

}  // namespace fusedops
