#include "ops/elementwise/add.h"

#include "core/cpu/elementwise.h"

namespace fusedops {
namespace {

Status add_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(Add::kX));
  FUSEDOPS_TRY(rule.same_as(Add::kY, Add::kX));
  rule.outputs[0] = rule.inputs[Add::kX];
  return {};
}

Status add_cpu(const Call& call) { return cpu::elementwise(call, Add{}, Add::kX, Add::kY); }

}  // namespace

const Operator& add() {
  static const Operator op{
      .name = "add",
      .inputs = {{"x"}, {"y"}},
      .outputs = {{"sum", "x"}},
      .derivative = {{.gradients = {{"x", "dsum"}, {"y", "dsum"}}}},
      .rule = add_rule,
      .cpu = add_cpu,
      .cuda = add_cuda,
      .batched = true,
  };
  return op;
}

}  // namespace fusedops
