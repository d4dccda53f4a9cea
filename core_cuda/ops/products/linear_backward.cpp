// linear_backward as calls of other operators, on CPU and GPU: linear, if z was not saved; bias_act_backward, for dz
// and dbias in one pass; matmul_backward.
#include <algorithm>

#include "ops/products/linear.h"

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
  FUSEDOPS_TRY(matches_y(rule, kDy, y));
  rule.outputs[kDx] = rule.gradient(kX, rule.attributes[kNeedDx], kX);
  rule.outputs[kDweight] = rule.gradient(kWeight, rule.attributes[kNeedDweight], kX);
  rule.outputs[kDbias] = rule.gradient(kBias, rule.attributes[kNeedDbias], kX);
  return {};
}

class Calls {
 public:
  Calls(const Call& call, void* workspace)
      : memory_(workspace),
        x_(MatrixView::of_rows(*call.inputs[kX])),
        dy_(MatrixView::of_rows(*call.inputs[kDy])),
        z_(dy_.view.dtype, dy_.sizes[0], dy_.sizes[1], dy_.sizes[1]),
        dz_(dy_.view.dtype, dy_.sizes[0], dy_.sizes[1], dy_.sizes[1]),
        bias_(call.inputs[kBias] ? *call.inputs[kBias] : View()),
        forward_(call),
        act_(call),
        backward_(call) {
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

    // The same kernel as in the forward: z has the same bits. y takes the memory of dz.
    set_affine(forward_, x_, weight, call.inputs[kBias], transpose);
    forward_.set_text<"activation">(activation);
    forward_.set<"keep">(true);
    forward_.output<"y">() = dz_.view;
    forward_.output<"z">() = z_.view;

    bias_.data = nullptr;  // z includes it

    act_.input<"dy">() = &dy_.view;
    act_.input<"x">() = has_slope ? &z_.view : &dy_.view;  // not read for the identity
    act_.input<"bias">() = call.inputs[kBias] ? &bias_ : nullptr;
    act_.output<"dx">() = dz_.view;
    act_.output<"dbias">() = call.outputs[kDbias];
    act_.set_text<"activation">(activation);
    act_.set<"need_dx">(need_dz);
    act_.set<"need_dbias">(need_dbias);

    set_products(backward_, need_dz ? dz_ : dy_, x_, weight, transpose, need_dx, need_dweight);
    backward_.output<"da">() = call.outputs[kDx];
    backward_.output<"db">() = call.outputs[kDweight];
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
  WorkspaceAllocator memory_;
  MatrixView x_, dy_, z_, dz_;
  View bias_;
  SubCall<kLinear> forward_;
  SubCall<kBiasActBackward> act_;
  SubCall<kMatmulBackward> backward_;
  bool has_forward_, has_act_, has_backward_;
};

}  // namespace

Operator linear_backward() { return {kLinearBackward, in_calls<Calls>(backward_rule, matmul_backward())}; }

}  // namespace fusedops
