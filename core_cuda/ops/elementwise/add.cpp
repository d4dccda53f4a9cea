#include "ops/elementwise/add.h"

#include "core/cpu/elementwise.h"

namespace fusedops {
namespace {

Status add_rule(Rule& rule) {
  constexpr int kX = input_of(kAdd, "x");
  FUSEDOPS_TRY(rule.floating(kX));
  FUSEDOPS_TRY(rule.same_as(input_of(kAdd, "y"), kX));
  rule.outputs[output_of(kAdd, "sum")] = rule.inputs[kX];
  return {};
}

Status add_cpu(const Call& call) { return cpu::elementwise<kAdd>(call, Add{}); }

}  // namespace

const Operator& add() {
  static const Operator op{
      kAdd,
      {.derivative = {{.gradients = {{"x", "dsum"}, {"y", "dsum"}}}},
       .rule = add_rule,
       .cpu = add_cpu,
       .cuda = add_cuda},
  };
  return op;
}

}  // namespace fusedops
