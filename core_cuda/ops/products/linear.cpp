#include "ops/products/linear.h"

namespace fusedops {
namespace {

constexpr auto kActivation = attribute_of<std::string>(kLinear, "activation");
constexpr auto kTransposeWeight = attribute_of<bool>(kLinear, "transpose_weight");
constexpr auto kKeep = attribute_of<bool>(kLinear, "keep");

bool needs_z(const Attributes& attributes) { return attributes[kKeep] && attributes[kActivation] != "identity"; }

Status rule_of_linear(Rule& rule) {
  constexpr int kX = input_of(kLinear, "x");
  Shape& y = rule.outputs[output_of(kLinear, "y")];
  FUSEDOPS_TRY(linear_rule(rule, kX, input_of(kLinear, "weight"), input_of(kLinear, "bias"),
                           rule.attributes[kTransposeWeight], &y));
  rule.outputs[output_of(kLinear, "z")] = needs_z(rule.attributes) ? y : Shape::of(y.dtype, {0});
  return {};
}

size_t workspace_of_linear(const Call& call) { return call.context.cuda ? linear_product(call).workspace() : 0; }

Status linear_cpu(const Call& call) { return multiply_cpu(linear_product(call), call.context); }

}  // namespace

Status linear_rule(Rule& rule, int of_x, int of_weight, int of_bias, bool transpose_weight, Shape* y) {
  FUSEDOPS_TRY(rule.has_rows(of_x));
  FUSEDOPS_TRY(rule.same_dtype(of_weight, of_x));
  const Shape &x = rule.inputs[of_x], &weight = rule.inputs[of_weight], &bias = rule.inputs[of_bias];
  if (weight.ranked && weight.rank != 2) return rule.must(of_weight, "have 2 dimensions", "shape " + rule.show(weight));
  *y = x;
  if (weight.ranked) {
    Dim in = weight.dims[transpose_weight ? 1 : 0];
    if (x.ranked && !rule.same(in, x.dims[x.rank - 1])) {
      Dim other = weight.dims[transpose_weight ? 0 : 1];
      const bool is_transposed = rule.same(other, x.dims[x.rank - 1]);
      const std::string advice =
          transpose_weight ? ": transpose_weight=False takes [in, out]" : ": transpose_weight=True takes [out, in]";
      return rule.must(of_weight,
                       "have " + rule.show(x.dims[x.rank - 1]) + (transpose_weight ? " columns" : " rows") +
                           " to multiply " + rule.input_name(of_x) + " of shape " + rule.show(x),
                       "shape " + rule.show(weight) + (is_transposed ? advice : ""));
    }
    if (x.ranked) y->dims[y->rank - 1] = weight.dims[transpose_weight ? 0 : 1];
  } else {
    y->ranked = false;
  }
  if (!bias.present) return {};
  FUSEDOPS_TRY(rule.same_dtype(of_bias, of_x));
  if (!bias.ranked || !weight.ranked) return {};
  Dim out = weight.dims[transpose_weight ? 0 : 1];
  if (bias.rank == 1 && rule.same(out, bias.dims[0])) return {};
  return rule.must(of_bias, "have shape [" + rule.show(out) + "], the outputs of " + rule.input_name(of_weight),
                   rule.show(bias));
}

Status matches_y(Rule& rule, int of_dy, const Shape& y) {
  const Shape& dy = rule.inputs[of_dy];
  if (dy.dtype != y.dtype) return rule.must(of_dy, std::string("be ") + name_of(y.dtype), name_of(dy.dtype));
  Shape expected = y;
  return rule.same_shape(expected, dy)
             ? Status()
             : rule.must(of_dy, "have shape " + rule.show(y) + ", that of the output", rule.show(dy));
}

void set_affine(SubCall<kLinear>& call, const MatrixView& x, const View* weight, const View* bias,
                bool transpose_weight) {
  call.input<"x">() = &x.view;
  call.input<"weight">() = weight;
  call.input<"bias">() = bias;
  call.set_text<"activation">("identity");
  call.set<"transpose_weight">(transpose_weight);
}

void set_products(SubCall<kMatmulBackward>& call, const MatrixView& dy, const MatrixView& x, const View* weight,
                  bool transpose_weight, bool need_dx, bool need_dweight) {
  call.input<"dc">() = &dy.view;
  call.input<"a">() = &x.view;
  call.input<"b">() = weight;
  call.set<"transpose_b">(transpose_weight);
  call.set<"need_da">(need_dx);
  call.set<"need_db">(need_dweight);
}

void set_row_sum(SubCall<kBiasActBackward>& call, const MatrixView& gradient, const View* bias, const View& dbias) {
  call.input<"dy">() = call.input<"x">() = &gradient.view;  // not read for the identity
  call.input<"bias">() = bias;
  call.output<"dbias">() = dbias;
  call.set_text<"activation">("identity");
  call.set<"need_dbias">(true);
}

Matmul linear_product(const Call& call) {
  const View &x = *call.inputs[input_of(kLinear, "x")], &weight = *call.inputs[input_of(kLinear, "weight")];
  const View *bias = call.inputs[input_of(kLinear, "bias")], &y = call.outputs[output_of(kLinear, "y")];
  const bool transpose = call.attributes[kTransposeWeight];
  const Rows rows = as_rows(x);
  Matmul product(x.dtype, 1, rows.count, weight.sizes[transpose ? 0 : 1], rows.size, {x.data, false, rows.stride, 0},
                 Matmul::Matrix::of(weight, transpose), y.data);
  product.epilogue = {bias ? bias->data : nullptr, activations::index_of(call.attributes[kActivation]),
                      needs_z(call.attributes) ? call.outputs[output_of(kLinear, "z")].data : nullptr};
  return product;
}

Operator linear() {
  return with_backward(
      kLinear, kLinearBackward,
      {.rule = rule_of_linear, .workspace = workspace_of_linear, .cpu = linear_cpu, .cuda = linear_cuda});
}

}  // namespace fusedops
