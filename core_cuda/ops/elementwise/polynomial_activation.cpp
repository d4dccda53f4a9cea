#include "ops/elementwise/polynomial_activation.h"

#include "core/cpu/elementwise.h"

namespace fusedops {

std::vector<double> derivative(const std::vector<double>& coefficients) {
  std::vector<double> slopes;
  for (size_t k = 1; k < coefficients.size(); ++k) slopes.push_back(static_cast<double>(k) * coefficients[k]);
  if (slopes.empty()) slopes.push_back(0.0);
  return slopes;
}

namespace {

Status few_coefficients(Rule& rule) {
  const size_t count = rule.attributes[0].f64s.size();
  if (count >= 1 && count <= kMostCoefficients) return {};
  return Status::error("fusedops.", rule.op.name, ": coefficients must be 1 to 8 numbers; got ", std::to_string(count));
}

Status forward_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(PolynomialPlaces::kX));
  FUSEDOPS_TRY(few_coefficients(rule));
  rule.outputs[0] = rule.inputs[PolynomialPlaces::kX];
  return {};
}

Status forward_cpu(const Call& call) {
  return with_polynomial(call.attributes[0].f64s, [&](const auto& polynomial) {
    return cpu::elementwise(call, polynomial, PolynomialPlaces::kX);
  });
}

Status backward_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(PolynomialBackwardPlaces::kX));
  FUSEDOPS_TRY(few_coefficients(rule));
  FUSEDOPS_TRY(rule.same_as(PolynomialBackwardPlaces::kDy, PolynomialBackwardPlaces::kX));
  rule.outputs[0] = rule.inputs[PolynomialBackwardPlaces::kX];
  return {};
}

Status backward_cpu(const Call& call) {
  return with_polynomial(derivative(call.attributes[0].f64s), [&](const auto& slope) {
    return cpu::elementwise(call, PolynomialBackward{slope}, PolynomialBackwardPlaces::kDy,
                            PolynomialBackwardPlaces::kX);
  });
}

}  // namespace

const Operator& polynomial_activation() {
  static const Operator op{
      .name = "polynomial_activation",
      .inputs = {{"x"}},
      .outputs = {{"y", "x"}},
      .attributes = {{"coefficients", Type::f64s, "[1.0, 1.0, 1.0]"}},
      .derivative = {{.op = "polynomial_activation_backward", .inputs = {"dy", "x"}, .gradients = {{"x", "dx"}}}},
      .rule = forward_rule,
      .cpu = forward_cpu,
      .cuda = polynomial_activation_cuda,
      .batched = true,
  };
  return op;
}

const Operator& polynomial_activation_backward() {
  static const Operator op{
      .name = "polynomial_activation_backward",
      .inputs = {{"dy"}, {"x"}},
      .outputs = {{"dx", "x"}},
      .attributes = {{"coefficients", Type::f64s, "[1.0, 1.0, 1.0]"}},
      .rule = backward_rule,
      .cpu = backward_cpu,
      .cuda = polynomial_activation_backward_cuda,
      .batched = true,
  };
  return op;
}

}  // namespace fusedops
