#include "ops/normalization/layer_norm.h"

#include "ops/normalization/norm_cpu.h"

namespace fusedops {

const Operator& layer_norm() {
  static const Operator op{
      .name = "layer_norm",
      .inputs = {{"x", Kind::tensor, Layout::rows},
                 {.name = "weight", .kind = Kind::optional, .parameter = true},
                 {.name = "bias", .kind = Kind::optional, .parameter = true}},
      .outputs = {{"y", "x"}, {"mean", "compute(x)", true}, {"rstd", "compute(x)", true}},
      .attributes = {{"eps", Type::f64, "1e-5"}},
      .derivative = {{.op = "layer_norm_backward",
                      .inputs = {"dy", "x", "weight", "bias", "mean", "rstd", nullptr},
                      .gradients = {{"x", "dx"}, {"weight", "dweight"}, {"bias", "dbias"}}}},
      .rule = [](Rule& rule) { return norm_forward_rule(rule, kLayerNorm); },
      .workspace = [](const Call& call) { return norm_forward_workspace(call, kLayerNorm); },
      .cpu = [](const Call& call) { return norm_forward_cpu(call, kLayerNorm); },
      .cuda = layer_norm_cuda,
      .batched = true,
  };
  return op;
}

const Operator& add_layer_norm() {
  static const Operator op{
      .name = "add_layer_norm",
      .inputs = {{"x", Kind::tensor, Layout::rows},
                 {"residual", Kind::tensor, Layout::rows},
                 {.name = "weight", .kind = Kind::optional, .parameter = true},
                 {.name = "bias", .kind = Kind::optional, .parameter = true}},
      .outputs = {{"y", "x"}, {"s", "x"}, {"mean", "compute(x)", true}, {"rstd", "compute(x)", true}},
      .attributes = {{"eps", Type::f64, "1e-5"}},
      .derivative = {{.op = "layer_norm_backward",
                      .inputs = {"dy", "s", "weight", "bias", "mean", "rstd", "ds"},
                      .gradients = {{"x", "dx"}, {"residual", "dx"}, {"weight", "dweight"}, {"bias", "dbias"}}},
                     {.gradients = {{"x", "ds"}, {"residual", "ds"}}}},
      .rule = [](Rule& rule) { return norm_forward_rule(rule, kAddLayerNorm); },
      .workspace = [](const Call& call) { return norm_forward_workspace(call, kAddLayerNorm); },
      .cpu = [](const Call& call) { return norm_forward_cpu(call, kAddLayerNorm); },
      .cuda = add_layer_norm_cuda,
      .batched = true,
  };
  return op;
}

const Operator& layer_norm_backward() {
  static const Operator op{
      .name = "layer_norm_backward",
      .inputs = {{"dy", Kind::tensor, Layout::rows},
                 {"x", Kind::tensor, Layout::rows},
                 {.name = "weight", .kind = Kind::optional, .parameter = true},
                 {.name = "bias", .kind = Kind::optional, .parameter = true},
                 {"mean"},
                 {"rstd"},
                 {"ds", Kind::optional, Layout::rows}},
      .outputs = {{"dx", "x"}, {"dweight", "weight"}, {"dbias", "bias"}},
      .attributes = {{"need_dx", Type::boolean, "true"},
                     {"need_dweight", Type::boolean, "true"},
                     {"need_dbias", Type::boolean, "true"}},
      .rule = [](Rule& rule) { return norm_backward_rule(rule, kLayerNormBackward); },
      .workspace = [](const Call& call) { return norm_backward_workspace(call, kLayerNormBackward); },
      .cpu = [](const Call& call) { return norm_backward_cpu(call, kLayerNormBackward); },
      .cuda = layer_norm_backward_cuda,
  };
  return op;
}

}  // namespace fusedops
