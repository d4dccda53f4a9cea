#include "ops/products/gated_linear.h"

#include <algorithm>

#include "core/declaration/sub_call.h"
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
        cuda_(call.context.cuda),
        memory_(workspace),
        gate_(linear_.dtype, linear_.rows, linear_.columns, linear_.columns, linear_.gate),
        up_(linear_.dtype, linear_.rows, linear_.columns, linear_.columns, linear_.up),
        act_(gated_act(), call) {
    if (!call.attributes[kKeep]) {
      memory_.take(gate_);
      memory_.take(up_);
    }
    act_.call.inputs[input_of(kGatedAct, "gate")] = &gate_.view;
    act_.call.inputs[input_of(kGatedAct, "up")] = &up_.view;
    act_.call.outputs[output_of(kGatedAct, "y")] = call.outputs[kY];
    act_.set(attribute_of<std::string>(kGatedAct, "activation"), call.attributes[kActivation]);
  }

  size_t workspace() const {
    const size_t of_products = cuda_ ? linear_.gate_product(nullptr).workspace() : 0;
    return memory_.taken() + std::max(of_products, act_.workspace());
  }

  Status run(const Context& context) {
    FUSEDOPS_TRY(multiply(linear_.gate_product(gate_.view.data), context));
    FUSEDOPS_TRY(multiply(linear_.up_product(up_.view.data), context));
    return act_.run(memory_.rest());
  }

 private:
  Status multiply(const Matmul& product, const Context& context) {
    return cuda_ ? multiply_cuda(product, memory_.rest(), context) : multiply_cpu(product, context);
  }

  GatedLinear linear_;
  bool cuda_;
  Memory memory_;
  MatrixView gate_, up_;
  SubCall act_;
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

size_t gated_linear_workspace(const Call& call) { return Calls(call, nullptr).workspace(); }

Status gated_linear_in_parts(const Call& call) { return Calls(call, call.workspace).run(call.context); }

const Operator& gated_linear() {
  static const Operator op{
      kGatedLinear,
      {.derivative = {{.op = "gated_linear_backward",
                       .inputs = {"dy", "x", "gate_weight", "up_weight", "gate_bias", "up_bias", "gate", "up"},
                       .gradients = {{"x", "dx"},
                                     {"gate_weight", "dgate_weight"},
                                     {"up_weight", "dup_weight"},
                                     {"gate_bias", "dgate_bias"},
                                     {"up_bias", "dup_bias"}}}},
       .rule = rule_of_gated_linear,
       .workspace = gated_linear_workspace,
       .cpu = gated_linear_in_parts,
       .cuda = gated_linear_cuda,
       .autocast = true,
       .batched = true},
  };
  return op;
}

}  // namespace fusedops
