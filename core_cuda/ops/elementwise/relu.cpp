#include "ops/elementwise/relu.h"

#include "core/cpu/elementwise.h"

namespace fusedops {
namespace {

Status relu_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(Relu::kX));
  rule.outputs[0] = rule.inputs[Relu::kX];
  return {};
}

Status relu_cpu(const Call& call) { return cpu::elementwise(call, Relu{}, Relu::kX); }

Status relu_backward_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(ReluBackward::kY));
  FUSEDOPS_TRY(rule.same_as(ReluBackward::kDy, ReluBackward::kY));
  rule.outputs[0] = rule.inputs[ReluBackward::kY];
  return {};
}

Status relu_backward_cpu(const Call& call) {
  return cpu::elementwise(call, ReluBackward{}, ReluBackward::kDy, ReluBackward::kY);
}

}  // namespace

const Operator& relu() {
  static const Operator op{
      .name = "relu",
      .inputs = {{"x"}},
      .outputs = {{"y", "x"}},
      .derivative = {{.op = "relu_backward", .inputs = {"dy", "y"}, .gradients = {{"x", "dx"}}}},
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
