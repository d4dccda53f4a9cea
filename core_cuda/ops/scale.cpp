#include "ops/scale.h"

#include "core/elementwise.h"

namespace fusedops {
namespace {

enum : int { kX, kFactor };

Status scale_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(kX));
  FUSEDOPS_TRY(rule.one_element(kFactor, kX));
  rule.outputs[0] = rule.inputs[kX];
  return {};
}

Status scale_cpu(const Call& call) { return cpu::elementwise(call, Scale{scalar(call, kFactor)}, kX); }

}  // namespace

const Operator& scale() {
  static const Operator op{
      .name = "scale",
      .inputs = {{"x"}, {"factor", Kind::scalar}},
      .outputs = {{"y", "x"}},
      .rule = scale_rule,
      .cpu = scale_cpu,
      .cuda = scale_cuda,
      .batched = true,
  };
  return op;
}

}  // namespace fusedops
