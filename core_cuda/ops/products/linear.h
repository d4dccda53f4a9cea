// linear: y = act(z) with z = x W^T + bias, a product with an epilogue. Its gradient is dz = dy * act'(z), then that of
// the product: dx = dz W and dW = dz^T x. z is saved with the bias, rounded once, so that act' is taken at the value
// that the forward activated.
#pragma once

#include "core/common/activations.h"
#include "core/declaration/operator.h"
#include "core/declaration/sub_call.h"
#include "ops/activations/bias_act.h"
#include "ops/products/matmul_backward.h"

namespace fusedops {

inline constexpr AttributeList kLinearOptions{activations::attribute("identity"), kTransposeWeightAttribute};

// W is [out, in], or [in, out] if transpose_weight is false. z is empty unless keep is true and act' depends on z;
// without z the backward recomputes it.
inline constexpr Signature kLinear{
    .name = "linear",
    .inputs = {matrix_of_rows("x"), weight_matrix("weight"), optional_parameter("bias")},
    .outputs = {{"y", "x"}, {"z", "x", /*saved=*/true}},
    .attributes = with_flags(kLinearOptions, {"keep"}, "true"),
    .axes = {{"...k, kn^transpose_weight, n/k -> ...n/k, ...n/k", "activation=identity"},
             {"...K, Kn^transpose_weight, n -> ...n, ...n"}},
    .autocast = true,
};

Operator linear();
FUSEDOPS_CUDA_KERNEL Status linear_cuda(const Call& call);

// Gradients that are not needed are empty.
inline constexpr Signature kLinearBackward{
    .name = "linear_backward",
    .inputs = {matrix_of_rows("dy"), matrix_of_rows("x"), weight_matrix("weight"), optional_parameter("bias"),
               optional_tensor("z")},
    .outputs = {{"dx", "x"}, {"dweight", "weight"}, {"dbias", "bias"}},
    .attributes = with_needs(kLinearOptions, {"need_dx", "need_dweight", "need_dbias"}),
    .axes = {{"...n, ...k, kn^transpose_weight, n, ...n -> ...k/n, kn^transpose_weight/..., n/...",
              "activation=identity"},
             {"...n, ...K, Kn^transpose_weight, n, ...n -> ...K/n, Kn^transpose_weight/..., n/..."}},
};

Operator linear_backward();

// Sets the inputs of a call of linear, x W^T + bias, or of matmul_backward for such a product. The caller sets the
// outputs.
void set_affine(SubCall<kLinear>& call, const MatrixView& x, const View* weight, const View* bias,
                bool transpose_weight);
void set_products(SubCall<kMatmulBackward>& call, const MatrixView& dy, const MatrixView& x, const View* weight,
                  bool transpose_weight, bool need_dx, bool need_dweight);

// Sets up a call of bias_act_backward for dbias, the sum of a gradient's rows.
void set_row_sum(SubCall<kBiasActBackward>& call, const MatrixView& gradient, const View* bias, const View& dbias);

Matmul linear_product(const Call& call);

// Checks x [..., in], a weight and a bias of `out` columns, and infers the shape of y.
Status linear_rule(Rule& rule, int x, int weight, int bias, bool transpose_weight, Shape* y);

// Checks that the upstream gradient has the shape of y.
Status matches_y(Rule& rule, int dy, const Shape& y);

}  // namespace fusedops
