// The calls of other operators that linear's backward consists of, on the CPU and on a GPU alike: linear, if z was not
// saved; bias_act_backward, which gives dz and dbias in one pass; matmul_backward.
#include <algorithm>

#include "core/declaration/sub_call.h"
#include "ops/activations/bias_act.h"
#include "ops/products/linear.h"
#include "ops/products/matmul_backward.h"

namespace fusedops {
namespace {

constexpr int kDy = input_of(kLinearBackward, "dy"), kX = input_of(kLinearBackward, "x"),
              kWeight = input_of(kLinearBackward, "weight"), kBias = input_of(kLinearBackward, "bias"),
              kZ = input_of(kLinearBackward, "z");
constexpr int kDx = output_of(kLinearBackward, "dx"), kDweight = output_of(kLinearBackward, "dweight"),
              kDbias = output_of(kLinearBackward, "dbias");
constexpr auto kActivation = attribute_of<std::string>(kLinearBackward, "activation");
constexpr auto kTransposeWeight = attribute_of<bool>(kLinearBackward, "transpose_weight");
constexpr auto kNeedDx = attribute_of<bool>(kLinearBackward, "need_dx");
constexpr auto kNeedDweight = attribute_of<bool>(kLinearBackward, "need_dweight");
constexpr auto kNeedDbias = attribute_of<bool>(kLinearBackward, "need_dbias");

Status backward_rule(Rule& rule) {
  Shape y;
  FUSEDOPS_TRY(linear_rule(rule, kX, kWeight, kBias, rule.attributes[kTransposeWeight], &y));
  const Shape &x = rule.inputs[kX], &weight = rule.inputs[kWeight], &bias = rule.inputs[kBias];
  FUSEDOPS_TRY(matches_y(rule, kDy, y));
  const bool need_dbias = bias.present && rule.attributes[kNeedDbias];
  rule.outputs[kDx] = rule.attributes[kNeedDx] ? x : Shape::of(x.dtype, {0});
  rule.outputs[kDweight] = rule.attributes[kNeedDweight] ? weight : Shape::of(weight.dtype, {0});
  rule.outputs[kDbias] = need_dbias ? bias : Shape::of(x.dtype, {0});
  return {};
}

class Calls {
 public:
  // Without memory: for the size of the workspace.
  Calls(const Call& call, void* workspace)
      : memory_(workspace),
        x_(MatrixView::of_rows(*call.inputs[kX])),
        dy_(MatrixView::of_rows(*call.inputs[kDy])),
        z_(dy_.view.dtype, dy_.sizes[0], dy_.sizes[1], dy_.sizes[1]),
        dz_(dy_.view.dtype, dy_.sizes[0], dy_.sizes[1], dy_.sizes[1]),
        bias_(call.inputs[kBias] ? *call.inputs[kBias] : View()),
        forward_(linear(), call),
        act_(bias_act_backward(), call),
        backward_(matmul_backward(), call) {
    const std::string& activation = call.attributes[kActivation];
    const View *weight = call.inputs[kWeight], *kept = call.inputs[kZ];
    const bool has_slope = activation != "identity", transpose = call.attributes[kTransposeWeight];
    const bool need_dx = call.attributes[kNeedDx], need_dweight = call.attributes[kNeedDweight];
    const bool need_dbias = call.inputs[kBias] && call.attributes[kNeedDbias];
    has_act_ = has_slope || need_dbias;
    has_forward_ = has_slope && dy_.bytes() > 0 && (!kept || kept->numel() == 0);
    has_backward_ = need_dx || need_dweight;
    const bool need_dz = has_slope && has_backward_;
    if (has_forward_)
      memory_.take(z_);
    else
      z_.view.data = kept ? kept->data : nullptr;
    if (need_dz || has_forward_) memory_.take(dz_);

    // The call of the forward, by the same kernel: z has the same bits. y goes where dz will be.
    set_affine(forward_, x_, weight, call.inputs[kBias], transpose);
    forward_.set(attribute_of<std::string>(kLinear, "activation"), activation);
    forward_.set(attribute_of<bool>(kLinear, "keep"), true);
    forward_.call.outputs[output_of(kLinear, "y")] = dz_.view;
    forward_.call.outputs[output_of(kLinear, "z")] = z_.view;

    bias_.data = nullptr;  // z has it already

    act_.call.inputs[input_of(kBiasActBackward, "dy")] = &dy_.view;
    act_.call.inputs[input_of(kBiasActBackward, "x")] = has_slope ? &z_.view : &dy_.view;  // the identity does not ask
    act_.call.inputs[input_of(kBiasActBackward, "bias")] = call.inputs[kBias] ? &bias_ : nullptr;
    act_.call.outputs[output_of(kBiasActBackward, "dx")] = dz_.view;
    act_.call.outputs[output_of(kBiasActBackward, "dbias")] = call.outputs[kDbias];
    act_.set(attribute_of<std::string>(kBiasActBackward, "activation"), activation);
    act_.set(attribute_of<bool>(kBiasActBackward, "need_dx"), need_dz);
    act_.set(attribute_of<bool>(kBiasActBackward, "need_dbias"), need_dbias);

    set_products(backward_, need_dz ? dz_ : dy_, x_, weight, transpose, need_dx, need_dweight);
    backward_.call.outputs[output_of(kMatmulBackward, "da")] = call.outputs[kDx];
    backward_.call.outputs[output_of(kMatmulBackward, "db")] = call.outputs[kDweight];
  }

  size_t workspace() const {
    return memory_.taken() + std::max({has_forward_ ? forward_.workspace() : 0, has_act_ ? act_.workspace() : 0,
                                       has_backward_ ? backward_.workspace() : 0});
  }

  Status run() {
    if (has_forward_) FUSEDOPS_TRY(forward_.run(memory_.rest()));
    if (has_act_) FUSEDOPS_TRY(act_.run(memory_.rest()));
    return has_backward_ ? backward_.run(memory_.rest()) : Status();
  }

 private:
  Memory memory_;
  MatrixView x_, dy_, z_, dz_;
  View bias_;
  SubCall forward_, act_, backward_;
  bool has_forward_, has_act_, has_backward_;
};

size_t backward_workspace(const Call& call) { return Calls(call, nullptr).workspace(); }

Status run_calls(const Call& call) { return Calls(call, call.workspace).run(); }

}  // namespace

const Operator& linear_backward() {
  static const Operator op{
      kLinearBackward,
      {.rule = backward_rule,
       .workspace = backward_workspace,
       .cpu = run_calls,
       .cuda = matmul_backward().cuda ? run_calls : nullptr},
  };
  return op;
}

}  // namespace fusedops
