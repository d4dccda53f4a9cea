#include "ops/add.h"

#include "core/elementwise.h"

namespace fusedops {
namespace {

enum : int { kX, kY };

Status add_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(kX));
  FUSEDOPS_TRY(rule.same_dtype(kY, kX));
  FUSEDOPS_TRY(rule.same_shape(kY, kX));
  rule.outputs[0] = rule.inputs[kX];
  return {};
}

Status add_cpu(const Call& call) { return cpu::elementwise(call, Add{}, kX, kY); }

}  // namespace

const Operator& add() {
  static const Operator op{
      .name = "add",
      .inputs = {{"x"}, {"y"}},
      .outputs = {{"sum", "x"}},
      .rule = add_rule,
      .cpu = add_cpu,
      .cuda = add_cuda,
      .batched = true,
  };
  return op;
}

}  // namespace fusedops
