#include "ops/normalization/rms_norm.h"

#include "ops/normalization/norm.h"

namespace fusedops {

const Operator& rms_norm() {
  static const Operator op{
      kRmsNorm,
      {.derivative = {{.op = "rms_norm_backward",
                       .inputs = {"dy", "x", "weight", "rstd", nullptr, nullptr},
                       .gradients = {{"x", "dx"}, {"weight", "dweight"}}}},
       .rule = [](Rule& rule) { return norm_forward_rule(rule, kRmsNorm); },
       .workspace = [](const Call& call) { return norm_forward_workspace(call, kRmsNorm); },
       .cpu = [](const Call& call) { return norm_forward_cpu(call, kRmsNorm); },
       .cuda = rms_norm_cuda},
  };
  return op;
}

const Operator& add_rms_norm() {
  static const Operator op{
      kAddRmsNorm,
      {.derivative = {{.op = "rms_norm_backward",
                       .inputs = {"dy", "s", "weight", "rstd", "ds", "seed"},
                       .gradients = {{"x", "dropped_dx"}, {"residual", "dx"}, {"weight", "dweight"}},
                       .if_given = "seed"},
                      {.op = "rms_norm_backward",
                       .inputs = {"dy", "s", "weight", "rstd", "ds", nullptr},
                       .gradients = {{"x", "dx"}, {"residual", "dx"}, {"weight", "dweight"}}},
                      {.op = "dropout",
                       .inputs = {"ds", "seed"},
                       .gradients = {{"x", "y"}},
                       .if_given = "seed",
                       .attributes = {{"rate", "dropout"}}},
                      {.gradients = {{"x", "ds"}, {"residual", "ds"}}}},
       .rule = [](Rule& rule) { return norm_forward_rule(rule, kAddRmsNorm); },
       .workspace = [](const Call& call) { return norm_forward_workspace(call, kAddRmsNorm); },
       .cpu = [](const Call& call) { return norm_forward_cpu(call, kAddRmsNorm); },
       .cuda = add_rms_norm_cuda},
  };
  return op;
}

const Operator& rms_norm_float8() {
  static const Operator op{
      kRmsNormFloat8,
      {.rule = [](Rule& rule) { return norm_forward_rule(rule, kRmsNormFloat8); },
       .workspace = [](const Call& call) { return norm_forward_workspace(call, kRmsNormFloat8); },
       .cpu = [](const Call& call) { return norm_forward_cpu(call, kRmsNormFloat8); },
       .cuda = rms_norm_float8_cuda,
       .rounds_to_8_bits = true},
  };
  return op;
}

const Operator& add_rms_norm_float8() {
  static const Operator op{
      kAddRmsNormFloat8,
      {.rule = [](Rule& rule) { return norm_forward_rule(rule, kAddRmsNormFloat8); },
       .workspace = [](const Call& call) { return norm_forward_workspace(call, kAddRmsNormFloat8); },
       .cpu = [](const Call& call) { return norm_forward_cpu(call, kAddRmsNormFloat8); },
       .cuda = add_rms_norm_float8_cuda,
       .rounds_to_8_bits = true},
  };
  return op;
}

const Operator& rms_norm_backward() {
  static const Operator op{
      kRmsNormBackward,
      {.rule = [](Rule& rule) { return norm_backward_rule(rule, kRmsNormBackward); },
       .workspace = [](const Call& call) { return norm_backward_workspace(call, kRmsNormBackward); },
       .cpu = [](const Call& call) { return norm_backward_cpu(call, kRmsNormBackward); },
       .cuda = rms_norm_backward_cuda},
  };
  return op;
}

}  // namespace fusedops
