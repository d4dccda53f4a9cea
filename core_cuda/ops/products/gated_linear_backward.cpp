// gated_linear_backward as calls of other operators: gated_linear, if gate and up were not saved; gated_act_backward; a
// product for each weight; a sum over the rows for each bias; and the sum of both terms of dx.
#include "ops/products/gated_linear_backward.h"

#include <algorithm>

#include "ops/activations/gated_act.h"
#include "ops/elementwise/add.h"
#include "ops/products/gated_linear.h"
#include "ops/products/linear.h"

namespace fusedops {
namespace {

constexpr int kDy = input_of(kGatedLinearBackward, "dy"), kX = input_of(kGatedLinearBackward, "x");
constexpr int kDx = output_of(kGatedLinearBackward, "dx");
constexpr auto kActivation = attribute_of<std::string>(kGatedLinearBackward, "activation");
constexpr auto kTransposeWeight = attribute_of<bool>(kGatedLinearBackward, "transpose_weight");
constexpr auto kNeedDx = attribute_of<bool>(kGatedLinearBackward, "need_dx");

// Argument names of one of the two products.
struct ArgumentNames {
  int weight, bias, sums;
  int dweight, dbias;
  AttributeIndex<bool> need_dweight, need_dbias;

  consteval ArgumentNames(const char* weight, const char* bias, const char* sums, const char* dweight,
                          const char* dbias, const char* need_dweight, const char* need_dbias)
      : weight(input_of(kGatedLinearBackward, weight)),
        bias(input_of(kGatedLinearBackward, bias)),
        sums(input_of(kGatedLinearBackward, sums)),
        dweight(output_of(kGatedLinearBackward, dweight)),
        dbias(output_of(kGatedLinearBackward, dbias)),
        need_dweight(attribute_of<bool>(kGatedLinearBackward, need_dweight)),
        need_dbias(attribute_of<bool>(kGatedLinearBackward, need_dbias)) {}
};

constexpr ArgumentNames kGate("gate_weight", "gate_bias", "gate", "dgate_weight", "dgate_bias", "need_dgate_weight",
                              "need_dgate_bias");
constexpr ArgumentNames kUp("up_weight", "up_bias", "up", "dup_weight", "dup_bias", "need_dup_weight", "need_dup_bias");

Status backward_rule(Rule& rule) {
  for (const ArgumentNames& part : {kGate, kUp}) {
    Shape y;
    FUSEDOPS_TRY(linear_rule(rule, kX, part.weight, part.bias, rule.attributes[kTransposeWeight], &y));
    FUSEDOPS_TRY(matches_y(rule, kDy, y));
    rule.outputs[part.dweight] = rule.gradient(part.weight, rule.attributes[part.need_dweight], kX);
    rule.outputs[part.dbias] = rule.gradient(part.bias, rule.attributes[part.need_dbias], kX);
  }
  rule.outputs[kDx] = rule.gradient(kX, rule.attributes[kNeedDx], kX);
  return {};
}

// The calls for one of the two products.
struct WeightGradient {
  WeightGradient(const Call& call, const ArgumentNames& names, const MatrixView& x, const MatrixView& dy)
      : sums(dy.view.dtype, dy.sizes[0], dy.sizes[1], dy.sizes[1]),
        gradient(dy.view.dtype, dy.sizes[0], dy.sizes[1], dy.sizes[1]),
        names(names),
        bias(call),
        products(call) {
    const View *weight = call.inputs[names.weight], *kept = call.inputs[names.sums];
    const bool transpose = call.attributes[kTransposeWeight];
    is_saved = dy.bytes() == 0 || (kept && kept->numel() > 0);
    has_bias = call.inputs[names.bias] && call.attributes[names.need_dbias];
    need_dx = call.attributes[kNeedDx], need_dweight = call.attributes[names.need_dweight];
    sums.view.data = kept ? kept->data : nullptr;

    set_products(products, gradient, x, weight, transpose, need_dx, need_dweight);
    set_row_sum(bias, gradient, call.inputs[names.bias], call.outputs[names.dbias]);
    set_outputs(call);
  }

  void set_outputs(const Call& call) {
    products.output<"db">() = call.outputs[names.dweight];
    bias.output<"dbias">() = call.outputs[names.dbias];
  }

  // `least`: bytes that the gradient's memory has at least.
  void place(WorkspaceAllocator& memory, bool is_saved, int64_t least) {
    if (!is_saved) memory.take(sums);
    gradient.view.data = memory.take(static_cast<size_t>(std::max(gradient.bytes(), least)));
  }

  size_t workspace() const {
    return std::max(has_bias ? bias.workspace() : 0, need_dx || need_dweight ? products.workspace() : 0);
  }

  Status run(void* workspace) {
    if (has_bias) FUSEDOPS_TRY(bias.run(workspace));
    return need_dx || need_dweight ? products.run(workspace) : Status();
  }

  MatrixView sums, gradient;
  const ArgumentNames& names;
  SubCall<kBiasActBackward> bias;
  SubCall<kMatmulBackward> products;
  bool is_saved, has_bias, need_dx, need_dweight;
};

class Calls {
 public:
  Calls(const Call& call, void* workspace)
      : memory_(workspace),
        x_(MatrixView::of_rows(*call.inputs[kX])),
        dy_(MatrixView::of_rows(*call.inputs[kDy])),
        dx_(x_.view.dtype, x_.sizes[0], x_.sizes[1], x_.sizes[1]),
        other_(x_.view.dtype, x_.sizes[0], x_.sizes[1], x_.sizes[1]),
        gate_(call, kGate, x_, dy_),
        up_(call, kUp, x_, dy_),
        forward_(call),
        act_(call),
        add_(call) {
    has_forward_ = !gate_.is_saved || !up_.is_saved;
    gate_.place(memory_, !has_forward_, gate_.need_dx ? other_.bytes() : 0);
    up_.place(memory_, !has_forward_, 0);
    other_.view.data = gate_.gradient.view.data;  // read for the last time by the products with the gate
    up_.products.output<"da">() = other_.view;

    // The same kernel as in the forward: gate and up have the same bits. y takes the memory of dgate.
    forward_.input<"x">() = &x_.view;
    forward_.input<"gate_weight">() = call.inputs[kGate.weight];
    forward_.input<"up_weight">() = call.inputs[kUp.weight];
    forward_.input<"gate_bias">() = call.inputs[kGate.bias];
    forward_.input<"up_bias">() = call.inputs[kUp.bias];
    forward_.output<"y">() = gate_.gradient.view;
    forward_.output<"gate">() = gate_.sums.view;
    forward_.output<"up">() = up_.sums.view;
    forward_.set_text<"activation">(call.attributes[kActivation]);
    forward_.set<"transpose_weight">(call.attributes[kTransposeWeight]);
    forward_.set<"keep">(true);

    act_.input<"dy">() = &dy_.view;
    act_.input<"gate">() = &gate_.sums.view;
    act_.input<"up">() = &up_.sums.view;
    act_.output<"dgate">() = gate_.gradient.view;
    act_.output<"dup">() = up_.gradient.view;
    act_.set_text<"activation">(call.attributes[kActivation]);
    act_.set<"need_dgate">(true);
    act_.set<"need_dup">(true);

    add_.input<"x">() = &dx_.view;
    add_.input<"y">() = &other_.view;
    set_outputs(call);
  }

  void set_outputs(const Call& call) {
    dx_.view.data = call.outputs[kDx].data;
    gate_.products.output<"da">() = add_.output<"sum">() = dx_.view;
    gate_.set_outputs(call);
    up_.set_outputs(call);
  }

  size_t workspace() const {
    return memory_.taken() +
           std::max({has_forward_ ? forward_.workspace() : 0, gate_.workspace(), up_.workspace(), act_.workspace()});
  }

  Status run() {
    FUSEDOPS_TRY(run_first());
    return run_second();
  }

  Status run_first() {
    if (has_forward_) FUSEDOPS_TRY(forward_.run(memory_.rest()));
    return act_.run(memory_.rest());
  }

  Status run_second() {
    void* const workspace = memory_.rest();
    FUSEDOPS_TRY(gate_.run(workspace));
    FUSEDOPS_TRY(up_.run(workspace));
    return gate_.need_dx ? add_.run(workspace) : Status();
  }

 private:
  WorkspaceAllocator memory_;
  MatrixView x_, dy_, dx_, other_;
  WeightGradient gate_, up_;
  SubCall<kGatedLinear> forward_;
  SubCall<kGatedActBackward> act_;
  SubCall<kAdd> add_;
  bool has_forward_;
};

}  // namespace

Operator gated_linear_backward() { return {kGatedLinearBackward, in_calls<Calls>(backward_rule, matmul_backward())}; }

Parts gated_linear_backward_parts() {
  return {.op = kGatedLinearBackward.name,
          .released = 1u << kDy | 1u << kGate.sums | 1u << kUp.sums,
          .run = [](const Call& call, const std::function<void()>& between) -> Status {
            Calls calls(call, call.workspace);
            FUSEDOPS_TRY(calls.run_first());
            between();
            calls.set_outputs(call);
            return calls.run_second();
          }};
}

}  // namespace fusedops
