#include "ops/products/gated_linear.h"

#include <algorithm>

#include "ops/activations/gated_act.h"
#include "ops/products/linear.h"

namespace fusedops {
namespace {

constexpr int kX = input_of(kGatedLinear, "x"), kGateWeight = input_of(kGatedLinear, "gate_weight"),
              kUpWeight = input_of(kGatedLinear, "up_weight"), kGateBias = input_of(kGatedLinear, "gate_bias"),
              kUpBias = input_of(kGatedLinear, "up_bias");
constexpr int kY = output_of(kGatedLinear, "y"), kGate = output_of(kGatedLinear, "gate"),
              kUp = output_of(kGatedLinear, "up");
constexpr auto kActivation = attribute_of<std::string>(kGatedLinear, "activation");
constexpr auto kTransposeWeight = attribute_of<bool>(kGatedLinear, "transpose_weight");
constexpr auto kKeep = attribute_of<bool>(kGatedLinear, "keep");

Status rule_of_gated_linear(Rule& rule) {
  const bool transpose = rule.attributes[kTransposeWeight];
  Shape y;
  FUSEDOPS_TRY(linear_rule(rule, kX, kGateWeight, kGateBias, transpose, &y));
  FUSEDOPS_TRY(rule.same_as(kUpWeight, kGateWeight));
  FUSEDOPS_TRY(linear_rule(rule, kX, kUpWeight, kUpBias, transpose, &rule.outputs[kY]));
  const Shape kept = rule.attributes[kKeep] ? rule.outputs[kY] : Shape::of(y.dtype, {0});
  rule.outputs[kGate] = rule.outputs[kUp] = kept;
  return {};
}

class Calls {
 public:
  Calls(const Call& call, void* workspace)
      : linear_(call),
        memory_(workspace),
        x_(MatrixView::of_rows(*call.inputs[kX])),
        gate_(linear_.dtype, linear_.rows, linear_.columns, linear_.columns, linear_.gate),
        up_(linear_.dtype, linear_.rows, linear_.columns, linear_.columns, linear_.up),
        gate_product_(call),
        up_product_(call),
        act_(call) {
    if (!call.attributes[kKeep]) {
      memory_.take(gate_);
      memory_.take(up_);
    }
    act_.input<"gate">() = &gate_.view;
    act_.input<"up">() = &up_.view;
    act_.output<"y">() = call.outputs[kY];
    act_.set_text<"activation">(call.attributes[kActivation]);
    const bool transpose = call.attributes[kTransposeWeight];
    set_affine(gate_product_, x_, call.inputs[kGateWeight], call.inputs[kGateBias], transpose);
    set_affine(up_product_, x_, call.inputs[kUpWeight], call.inputs[kUpBias], transpose);
    gate_product_.output<"y">() = gate_.view;
    up_product_.output<"y">() = up_.view;
  }

  size_t workspace() const {
    return memory_.taken() + std::max({gate_product_.workspace(), up_product_.workspace(), act_.workspace()});
  }

  Status run() {
    FUSEDOPS_TRY(gate_product_.run(memory_.rest()));
    FUSEDOPS_TRY(up_product_.run(memory_.rest()));
    return act_.run(memory_.rest());
  }

 private:
  GatedLinear linear_;
  WorkspaceAllocator memory_;
  MatrixView x_, gate_, up_;
  SubCall<kLinear> gate_product_, up_product_;
  SubCall<kGatedAct> act_;
};

}  // namespace

GatedLinear::GatedLinear(const Call& call) {
  const bool transpose = call.attributes[kTransposeWeight], keep = call.attributes[kKeep];
  const auto data = [](const View* view) { return view ? view->data : nullptr; };
  const View &weights = *call.inputs[kGateWeight], &xs = *call.inputs[kX];
  const Rows x_rows = as_rows(xs);
  dtype = xs.dtype;
  rows = x_rows.count, columns = weights.sizes[transpose ? 0 : 1], depth = x_rows.size;
  x = {xs.data, false, x_rows.stride, 0};
  gate_weight = Matmul::Matrix::of(weights, transpose);
  up_weight = Matmul::Matrix::of(*call.inputs[kUpWeight], transpose);
  gate_bias = data(call.inputs[kGateBias]), up_bias = data(call.inputs[kUpBias]);
  activation = activations::index_of(call.attributes[kActivation]);
  y = call.outputs[kY].data;
  gate = keep ? call.outputs[kGate].data : nullptr, up = keep ? call.outputs[kUp].data : nullptr;
}

Matmul GatedLinear::gate_product(void* to) const {
  Matmul product(dtype, 1, rows, columns, depth, x, gate_weight, to);
  product.epilogue = {.bias = gate_bias};
  return product;
}

Matmul GatedLinear::up_product(void* to) const {
  Matmul product(dtype, 1, rows, columns, depth, x, up_weight, to);
  product.epilogue = {.bias = up_bias};
  return product;
}

size_t gated_linear_workspace(const Call& call) { return workspace_of_calls<Calls>(call); }

Status gated_linear_in_parts(const Call& call) { return run_calls<Calls>(call); }

Operator gated_linear() {
  return with_backward(kGatedLinear, kGatedLinearBackward,
                       {.rule = rule_of_gated_linear,
                        .workspace = gated_linear_workspace,
                        .cpu = gated_linear_in_parts,
                        .cuda = gated_linear_cuda});
}

}  // namespace fusedops
