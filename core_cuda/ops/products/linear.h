// linear: y = act(z) with z = x W^T + bias, a product with an epilogue. Its gradient is dz = dy * act'(z), then that of
// the product: dx = dz W and dW = dz^T x. z is saved with the bias, rounded once, so that the slope is that of the
// value that the forward activated.
#pragma once

#include "core/common/activations.h"
#include "core/declaration/operator.h"
#include "core/declaration/sub_call.h"
#include "ops/activations/bias_act.h"
#include "ops/products/matmul_backward.h"

namespace fusedops {

// W is [out, in], or [in, out] if transpose_weight is false. z is empty unless keep is true and the activation has a
// slope of its own; the backward then calls linear again.
inline constexpr Signature kLinear{
    .name = "linear",
    .inputs = {matrix_of_rows("x"), weight_matrix("weight"), optional_parameter("bias")},
    .outputs = {{"y", "x"}, {"z", "x", /*saved=*/true}},
    .attributes = {{"activation", Type::string, "identity", activations::kNames},
                   {"transpose_weight", Type::boolean, "true"},
                   {"keep", Type::boolean, "true"}},
    .axes = {{"...k, kn^transpose_weight, n/k -> ...n/k, ...n/k", "activation=identity"},
             {"...K, Kn^transpose_weight, n -> ...n, ...n"}},
};

Operator linear();
FUSEDOPS_CUDA_KERNEL Status linear_cuda(const Call& call);

// What is not needed is returned empty.
inline constexpr Signature kLinearBackward{
    .name = "linear_backward",
    .inputs = {matrix_of_rows("dy"), matrix_of_rows("x"), weight_matrix("weight"), optional_parameter("bias"),
               optional_tensor("z")},
    .outputs = {{"dx", "x"}, {"dweight", "weight"}, {"dbias", "bias"}},
    .attributes = {{"activation", Type::string, "identity", activations::kNames},
                   {"transpose_weight", Type::boolean, "true"},
                   {"need_dx", Type::boolean, "true"},
                   {"need_dweight", Type::boolean, "true"},
                   {"need_dbias", Type::boolean, "true"}},
    .axes = {{"...n, ...k, kn^transpose_weight, n, ...n -> ...k/n, kn^transpose_weight/..., n/...",
              "activation=identity"},
             {"...n, ...K, Kn^transpose_weight, n, ...n -> ...K/n, Kn^transpose_weight/..., n/..."}},
};

Operator linear_backward();

// Makes a call of linear, x W^T + bias, or of matmul_backward for such a product, of what these views hold. The outputs
// that are wanted are the caller's to set.
void set_affine(SubCall<kLinear>& call, const MatrixView& x, const View* weight, const View* bias,
                bool transpose_weight);
void set_products(SubCall<kMatmulBackward>& call, const MatrixView& dy, const MatrixView& x, const View* weight,
                  bool transpose_weight, bool need_dx, bool need_dweight);

// Makes a call of bias_act_backward: dbias, the sum of a gradient's rows.
void set_row_sum(SubCall<kBiasActBackward>& call, const MatrixView& gradient, const View* bias, const View& dbias);

// The product of linear.
Matmul linear_product(const Call& call);

// Checks x [..., in], a weight and a bias of `out` columns, and gives the shape of y.
Status linear_rule(Rule& rule, int x, int weight, int bias, bool transpose_weight, Shape* y);

// Checks an upstream gradient of y.
Status matches_y(Rule& rule, int dy, const Shape& y);

}  // namespace fusedops
