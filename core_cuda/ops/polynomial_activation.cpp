#include "ops/polynomial_activation.h"

#include <algorithm>

#include "core/elementwise.h"

namespace fusedops {

Polynomial::Polynomial(const std::vector<double>& values) : count(static_cast<int>(values.size())), coefficients{} {
  std::copy(values.begin(), values.end(), coefficients);
}

Polynomial Polynomial::derivative() const {
  std::vector<double> slopes{0.0};
  for (int k = 1; k < count; ++k) {
    if (k > 1) slopes.push_back(0.0);
    slopes[k - 1] = k * coefficients[k];
  }
  return Polynomial(slopes);
}

namespace {

enum : int { kX };
enum : int { kDy, kBackwardX };

Status few_coefficients(Rule& rule) {
  const size_t count = rule.attributes[0].f64s.size();
  if (count >= 1 && count <= Polynomial::kMost) return {};
  return Status::error("fusedops.", rule.op.name, ": coefficients must be 1 to 8 numbers; got ", std::to_string(count));
}

Status forward_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(kX));
  FUSEDOPS_TRY(few_coefficients(rule));
  rule.outputs[0] = rule.inputs[kX];
  return {};
}

Status forward_cpu(const Call& call) { return cpu::elementwise(call, Polynomial(call.attributes[0].f64s), kX); }

Status backward_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(kBackwardX));
  FUSEDOPS_TRY(few_coefficients(rule));
  FUSEDOPS_TRY(rule.same_dtype(kDy, kBackwardX));
  FUSEDOPS_TRY(rule.same_shape(kDy, kBackwardX));
  rule.outputs[0] = rule.inputs[kBackwardX];
  return {};
}

Status backward_cpu(const Call& call) {
  return cpu::elementwise(call, PolynomialBackward{Polynomial(call.attributes[0].f64s).derivative()}, kDy, kBackwardX);
}

}  // namespace

const Operator& polynomial_activation() {
  static const Operator op{
      .name = "polynomial_activation",
      .inputs = {{"x"}},
      .outputs = {{"y", "x"}},
      .attributes = {{"coefficients", Type::f64s, "[1.0, 1.0, 1.0]"}},
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
