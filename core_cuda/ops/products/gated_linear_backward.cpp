// The calls of other operators that gated_linear's backward consists of: gated_linear, if gate and up were not saved;
// gated_act_backward; for each weight its product, for each bias the sum over the rows; and the sum of both parts of
// dx.
#include <algorithm>
#include <utility>

#include "core/declaration/sub_call.h"
#include "ops/activations/bias_act.h"
#include "ops/activations/gated_act.h"
#include "ops/elementwise/add.h"
#include "ops/products/gated_linear.h"
#include "ops/products/linear.h"
#include "ops/products/matmul_backward.h"

namespace fusedops {
namespace {

constexpr int kDy = input_of(kGatedLinearBackward, "dy"), kX = input_of(kGatedLinearBackward, "x");
constexpr int kDx = output_of(kGatedLinearBackward, "dx");
constexpr auto kActivation = attribute_of<std::string>(kGatedLinearBackward, "activation");
constexpr auto kTransposeWeight = attribute_of<bool>(kGatedLinearBackward, "transpose_weight");
constexpr auto kNeedDx = attribute_of<bool>(kGatedLinearBackward, "need_dx");

// What belongs to one of the two products.
struct Names {
  int weight, bias, sums;
  int dweight, dbias;
  AttributePlace<bool> need_dweight, need_dbias;
};

constexpr Names kGate = {input_of(kGatedLinearBackward, "gate_weight"),
                         input_of(kGatedLinearBackward, "gate_bias"),
                         input_of(kGatedLinearBackward, "gate"),
                         output_of(kGatedLinearBackward, "dgate_weight"),
                         output_of(kGatedLinearBackward, "dgate_bias"),
                         attribute_of<bool>(kGatedLinearBackward, "need_dgate_weight"),
                         attribute_of<bool>(kGatedLinearBackward, "need_dgate_bias")};
constexpr Names kUp = {input_of(kGatedLinearBackward, "up_weight"),
                       input_of(kGatedLinearBackward, "up_bias"),
                       input_of(kGatedLinearBackward, "up"),
                       output_of(kGatedLinearBackward, "dup_weight"),
                       output_of(kGatedLinearBackward, "dup_bias"),
                       attribute_of<bool>(kGatedLinearBackward, "need_dup_weight"),
                       attribute_of<bool>(kGatedLinearBackward, "need_dup_bias")};

// The weights and biases as inputs of the forward, and as those of the backward.
constexpr std::pair<int, int> kForwardInputs[] = {{input_of(kGatedLinear, "gate_weight"), kGate.weight},
                                                  {input_of(kGatedLinear, "up_weight"), kUp.weight},
                                                  {input_of(kGatedLinear, "gate_bias"), kGate.bias},
                                                  {input_of(kGatedLinear, "up_bias"), kUp.bias}};

Status backward_rule(Rule& rule) {
  const DType dtype = rule.inputs[kX].dtype;
  for (const Names& part : {kGate, kUp}) {
    Shape y;
    FUSEDOPS_TRY(linear_rule(rule, kX, part.weight, part.bias, rule.attributes[kTransposeWeight], &y));
    FUSEDOPS_TRY(matches_y(rule, kDy, y));
    const Shape &weight = rule.inputs[part.weight], &bias = rule.inputs[part.bias];
    rule.outputs[part.dweight] = rule.attributes[part.need_dweight] ? weight : Shape::of(dtype, {0});
    rule.outputs[part.dbias] = bias.present && rule.attributes[part.need_dbias] ? bias : Shape::of(dtype, {0});
  }
  rule.outputs[kDx] = rule.attributes[kNeedDx] ? rule.inputs[kX] : Shape::of(dtype, {0});
  return {};
}

// The calls for one of the two products.
struct Part {
  Part(const Call& call, const Names& names, const MatrixView& x, const MatrixView& dy)
      : sums(dy.view.dtype, dy.sizes[0], dy.sizes[1], dy.sizes[1]),
        gradient(dy.view.dtype, dy.sizes[0], dy.sizes[1], dy.sizes[1]),
        bias(bias_act_backward(), call),
        products(matmul_backward(), call) {
    const View *weight = call.inputs[names.weight], *kept = call.inputs[names.sums];
    const bool transpose = call.attributes[kTransposeWeight];
    is_saved = dy.bytes() == 0 || (kept && kept->numel() > 0);
    has_bias = call.inputs[names.bias] && call.attributes[names.need_dbias];
    need_dx = call.attributes[kNeedDx], need_dweight = call.attributes[names.need_dweight];
    sums.view.data = kept ? kept->data : nullptr;

    set_products(products, gradient, x, weight, transpose, need_dx, need_dweight);
    products.call.outputs[output_of(kMatmulBackward, "db")] = call.outputs[names.dweight];

    set_row_sum(bias, gradient, call.inputs[names.bias], call.outputs[names.dbias]);
  }

  void place(Memory& memory, bool is_saved) {
    if (!is_saved) memory.take(sums);
    memory.take(gradient);
  }

  size_t workspace() const {
    return std::max(has_bias ? bias.workspace() : 0, need_dx || need_dweight ? products.workspace() : 0);
  }

  Status run(void* workspace) {
    if (has_bias) FUSEDOPS_TRY(bias.run(workspace));
    return need_dx || need_dweight ? products.run(workspace) : Status();
  }

  MatrixView sums, gradient;
  SubCall bias, products;
  bool is_saved, has_bias, need_dx, need_dweight;
};

class Calls {
 public:
  Calls(const Call& call, void* workspace)
      : memory_(workspace),
        x_(MatrixView::of_rows(*call.inputs[kX])),
        dy_(MatrixView::of_rows(*call.inputs[kDy])),
        dx_(x_.view.dtype, x_.sizes[0], x_.sizes[1], x_.sizes[1], call.outputs[kDx].data),
        other_(x_.view.dtype, x_.sizes[0], x_.sizes[1], x_.sizes[1]),
        gate_(call, kGate, x_, dy_),
        up_(call, kUp, x_, dy_),
        forward_(gated_linear(), call),
        act_(gated_act_backward(), call),
        add_(add(), call) {
    has_forward_ = !gate_.is_saved || !up_.is_saved;
    gate_.place(memory_, !has_forward_);
    up_.place(memory_, !has_forward_);
    if (gate_.need_dx) memory_.take(other_);
    gate_.products.call.outputs[output_of(kMatmulBackward, "da")] = dx_.view;
    up_.products.call.outputs[output_of(kMatmulBackward, "da")] = other_.view;

    // The call of the forward, by the same kernel: gate and up have the same bits. y goes where dgate will be.
    forward_.call.inputs[input_of(kGatedLinear, "x")] = &x_.view;
    for (const auto& [to, from] : kForwardInputs) forward_.call.inputs[to] = call.inputs[from];
    forward_.call.outputs[output_of(kGatedLinear, "y")] = gate_.gradient.view;
    forward_.call.outputs[output_of(kGatedLinear, "gate")] = gate_.sums.view;
    forward_.call.outputs[output_of(kGatedLinear, "up")] = up_.sums.view;
    forward_.set(attribute_of<std::string>(kGatedLinear, "activation"), call.attributes[kActivation]);
    forward_.set(attribute_of<bool>(kGatedLinear, "transpose_weight"), call.attributes[kTransposeWeight]);
    forward_.set(attribute_of<bool>(kGatedLinear, "keep"), true);

    act_.call.inputs[input_of(kGatedActBackward, "dy")] = &dy_.view;
    act_.call.inputs[input_of(kGatedActBackward, "gate")] = &gate_.sums.view;
    act_.call.inputs[input_of(kGatedActBackward, "up")] = &up_.sums.view;
    act_.call.outputs[output_of(kGatedActBackward, "dgate")] = gate_.gradient.view;
    act_.call.outputs[output_of(kGatedActBackward, "dup")] = up_.gradient.view;
    act_.set(attribute_of<std::string>(kGatedActBackward, "activation"), call.attributes[kActivation]);
    act_.set(attribute_of<bool>(kGatedActBackward, "need_dgate"), true);
    act_.set(attribute_of<bool>(kGatedActBackward, "need_dup"), true);

    add_.call.inputs[input_of(kAdd, "x")] = &dx_.view;
    add_.call.inputs[input_of(kAdd, "y")] = &other_.view;
    add_.call.outputs[output_of(kAdd, "sum")] = dx_.view;
  }

  size_t workspace() const {
    return memory_.taken() +
           std::max({has_forward_ ? forward_.workspace() : 0, gate_.workspace(), up_.workspace(), act_.workspace()});
  }

  Status run() {
    void* const workspace = memory_.rest();
    if (has_forward_) FUSEDOPS_TRY(forward_.run(workspace));
    FUSEDOPS_TRY(act_.run(workspace));
    FUSEDOPS_TRY(gate_.run(workspace));
    FUSEDOPS_TRY(up_.run(workspace));
    return gate_.need_dx ? add_.run(workspace) : Status();
  }

 private:
  Memory memory_;
  MatrixView x_, dy_, dx_, other_;
  Part gate_, up_;
  SubCall forward_, act_, add_;
  bool has_forward_;
};

size_t backward_workspace(const Call& call) { return Calls(call, nullptr).workspace(); }

Status run_calls(const Call& call) { return Calls(call, call.workspace).run(); }

}  // namespace

const Operator& gated_linear_backward() {
  static const Operator op{
      kGatedLinearBackward,
      {.rule = backward_rule,
       .workspace = backward_workspace,
       .cpu = run_calls,
       .cuda = matmul_backward().cuda ? run_calls : nullptr},
  };
  return op;
}

}  // namespace fusedops
