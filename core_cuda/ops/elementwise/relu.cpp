#include "ops/elementwise/relu.h"

#include "core/cpu/elementwise.h"

namespace fusedops {
namespace {

Status relu_rule(Rule& rule) {
  constexpr int kX = input_of(kRelu, "x");
  FUSEDOPS_TRY(rule.floating(kX));
  rule.outputs[output_of(kRelu, "y")] = rule.inputs[kX];
  return {};
}

Status relu_cpu(const Call& call) { return cpu::elementwise<kRelu>(call, Relu{}); }

Status relu_backward_rule(Rule& rule) {
  constexpr int kY = input_of(kReluBackward, "y");
  FUSEDOPS_TRY(rule.floating(kY));
  FUSEDOPS_TRY(rule.same_as(input_of(kReluBackward, "dy"), kY));
  rule.outputs[output_of(kReluBackward, "dx")] = rule.inputs[kY];
  return {};
}

Status relu_backward_cpu(const Call& call) { return cpu::elementwise<kReluBackward>(call, ReluBackward{}); }

}  // namespace

const Operator& relu() {
  static const Operator op{
      kRelu,
      {.derivative = {{.op = "relu_backward", .inputs = {"dy", "y"}, .gradients = {{"x", "dx"}}}},
       .rule = relu_rule,
       .cpu = relu_cpu,
       .cuda = relu_cuda},
  };
  return op;
}

const Operator& relu_backward() {
  static const Operator op{
      kReluBackward,
      {.rule = relu_backward_rule, .cpu = relu_backward_cpu, .cuda = relu_backward_cuda},
  };
  return op;
}

}  // namespace fusedops
