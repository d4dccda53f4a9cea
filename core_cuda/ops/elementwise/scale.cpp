#include "ops/elementwise/scale.h"

#include "core/cpu/elementwise.h"

namespace fusedops {
namespace {

Status scale_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(Scale::kX));
  FUSEDOPS_TRY(rule.one_element(Scale::kFactor, Scale::kX));
  rule.outputs[0] = rule.inputs[Scale::kX];
  return {};
}

Status scale_cpu(const Call& call) { return cpu::elementwise(call, Scale{scalar(call, Scale::kFactor)}, Scale::kX); }

}  // namespace

const Operator& scale() {
  static const Operator op{
      .name = "scale",
      .inputs = {{"x"}, {"factor", Kind::scalar}},
      .outputs = {{"y", "x"}},
      .derivative = {{.op = "axpby_backward",
                      .inputs = {"dy", "factor", "x"},
                      .gradients = {{"factor", "da"}, {"x", "dx"}},
                      .if_wanted = "factor"},
                     {.op = "scale", .inputs = {"dy", "factor"}, .gradients = {{"x", "y"}}}},
      .rule = scale_rule,
      .cpu = scale_cpu,
      .cuda = scale_cuda,
      .batched = true,
  };
  return op;
}

}  // namespace fusedops
