#include "ops/elementwise/scale.h"

#include "core/cpu/elementwise.h"

namespace fusedops {
namespace {

Status scale_rule(Rule& rule) {
  constexpr int kX = input_of(kScale, "x");
  FUSEDOPS_TRY(rule.floating(kX));
  FUSEDOPS_TRY(rule.one_element(input_of(kScale, "factor"), kX));
  rule.outputs[output_of(kScale, "y")] = rule.inputs[kX];
  return {};
}

Status scale_cpu(const Call& call) {
  return cpu::elementwise<kScale>(call, Scale{scalar(call, input_of(kScale, "factor"))});
}

}  // namespace

const Operator& scale() {
  static const Operator op{
      kScale,
      {.derivative = {{.op = "axpby_backward",
                       .inputs = {"dy", "factor", "x"},
                       .gradients = {{"factor", "da"}, {"x", "dx"}},
                       .if_wanted = "factor"},
                      {.op = "scale", .inputs = {"dy", "factor"}, .gradients = {{"x", "y"}}}},
       .rule = scale_rule,
       .cpu = scale_cpu,
       .cuda = scale_cuda},
  };
  return op;
}

}  // namespace fusedops
