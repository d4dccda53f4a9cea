#include "ops/relu.h"

#include "core/elementwise.h"

namespace fusedops {
namespace {

enum : int { kX };
enum : int { kDy, kY };

Status relu_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(kX));
  rule.outputs[0] = rule.inputs[kX];
  return {};
}

Status relu_cpu(const Call& call) { return cpu::elementwise(call, Relu{}, kX); }

Status relu_backward_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(kY));
  FUSEDOPS_TRY(rule.same_dtype(kDy, kY));
  FUSEDOPS_TRY(rule.same_shape(kDy, kY));
  rule.outputs[0] = rule.inputs[kY];
  return {};
}

Status relu_backward_cpu(const Call& call) { return cpu::elementwise(call, ReluBackward{}, kDy, kY); }

}  // namespace

const Operator& relu() {
  static const Operator op{
      .name = "relu",
      .inputs = {{"x"}},
      .outputs = {{"y", "x"}},
      .rule = relu_rule,
      .cpu = relu_cpu,
      .cuda = relu_cuda,
      .batched = true,
  };
  return op;
}

const Operator& relu_backward() {
  static const Operator op{
      .name = "relu_backward",
      .inputs = {{"dy"}, {"y"}},
      .outputs = {{"dx", "y"}},
      .rule = relu_backward_rule,
      .cpu = relu_backward_cpu,
      .cuda = relu_backward_cuda,
      .batched = true,
  };
  return op;
}

}  // namespace fusedops
