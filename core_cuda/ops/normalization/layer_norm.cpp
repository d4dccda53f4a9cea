#include "ops/normalization/layer_norm.h"

#include "ops/normalization/norm.h"

namespace fusedops {

const Operator& layer_norm() {
  static const Operator op{
      kLayerNorm,
      {.derivative = {{.op = "layer_norm_backward",
                       .inputs = {"dy", "x", "weight", "bias", "mean", "rstd", nullptr, nullptr},
                       .gradients = {{"x", "dx"}, {"weight", "dweight"}, {"bias", "dbias"}}}},
       .rule = [](Rule& rule) { return norm_forward_rule(rule, kLayerNorm); },
       .workspace = [](const Call& call) { return norm_forward_workspace(call, kLayerNorm); },
       .cpu = [](const Call& call) { return norm_forward_cpu(call, kLayerNorm); },
       .cuda = layer_norm_cuda},
  };
  return op;
}

const Operator& layer_norm_float8() {
  static const Operator op{
      kLayerNormFloat8,
      {.rule = [](Rule& rule) { return norm_forward_rule(rule, kLayerNormFloat8); },
       .workspace = [](const Call& call) { return norm_forward_workspace(call, kLayerNormFloat8); },
       .cpu = [](const Call& call) { return norm_forward_cpu(call, kLayerNormFloat8); },
       .cuda = layer_norm_float8_cuda,
       .rounds_to_8_bits = true},
  };
  return op;
}

const Operator& add_layer_norm() {
  static const Operator op{
      kAddLayerNorm,
      {.derivative = {{.op = "layer_norm_backward",
                       .inputs = {"dy", "s", "weight", "bias", "mean", "rstd", "ds", "seed"},
                       .gradients = {{"x", "dropped_dx"}, {"residual", "dx"}, {"weight", "dweight"}, {"bias", "dbias"}},
                       .if_given = "seed"},
                      {.op = "layer_norm_backward",
                       .inputs = {"dy", "s", "weight", "bias", "mean", "rstd", "ds", nullptr},
                       .gradients = {{"x", "dx"}, {"residual", "dx"}, {"weight", "dweight"}, {"bias", "dbias"}}},
                      {.op = "dropout",
                       .inputs = {"ds", "seed"},
                       .gradients = {{"x", "y"}},
                       .if_given = "seed",
                       .attributes = {{"rate", "dropout"}}},
                      {.gradients = {{"x", "ds"}, {"residual", "ds"}}}},
       .rule = [](Rule& rule) { return norm_forward_rule(rule, kAddLayerNorm); },
       .workspace = [](const Call& call) { return norm_forward_workspace(call, kAddLayerNorm); },
       .cpu = [](const Call& call) { return norm_forward_cpu(call, kAddLayerNorm); },
       .cuda = add_layer_norm_cuda},
  };
  return op;
}

const Operator& layer_norm_backward() {
  static const Operator op{
      kLayerNormBackward,
      {.rule = [](Rule& rule) { return norm_backward_rule(rule, kLayerNormBackward); },
       .workspace = [](const Call& call) { return norm_backward_workspace(call, kLayerNormBackward); },
       .cpu = [](const Call& call) { return norm_backward_cpu(call, kLayerNormBackward); },
       .cuda = layer_norm_backward_cuda},
  };
  return op;
}

}  // namespace fusedops
