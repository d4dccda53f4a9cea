// gated_linear: y = act(x Wg^T + bg) * (x Wu^T + bu), the first half of a gated feed-forward layer. Its gradient is
// that of gated_act at gate and up, then those of both products.
#pragma once

#include "core/common/activations.h"
#include "core/declaration/operator.h"
#include "ops/products/matmul.h"

namespace fusedops {

inline constexpr AttributeList kGatedLinearOptions{activations::attribute("silu"), kTransposeWeightAttribute};

// Both weights are [out, in], or [in, out] if transpose_weight is false. gate and up, the two sums with their biases,
// are empty unless keep is true; without them the backward recomputes them.
inline constexpr Signature kGatedLinear{
    .name = "gated_linear",
    .inputs = {matrix_of_rows("x"), weight_matrix("gate_weight"), weight_matrix("up_weight"),
               optional_parameter("gate_bias"), optional_parameter("up_bias")},
    .outputs = {{"y", "x"}, {"gate", "x", /*saved=*/true}, {"up", "x", /*saved=*/true}},
    .attributes = with_flags(kGatedLinearOptions, {"keep"}, "true"),
    .axes = {{"...K, Kn^transpose_weight, Kn^transpose_weight, n, n -> ...n, ...n, ...n"}},
    .autocast = true,
};

Operator gated_linear();
FUSEDOPS_CUDA_KERNEL Status gated_linear_cuda(const Call& call);

// Gradients that are not needed are empty.
inline constexpr Signature kGatedLinearBackward{
    .name = "gated_linear_backward",
    .inputs = InputList{matrix_of_rows("dy")}
                  .with(kGatedLinear.inputs)
                  .with({optional_tensor("gate"), optional_tensor("up")}),
    .outputs = {{"dx", "x"},
                {"dgate_weight", "gate_weight"},
                {"dup_weight", "up_weight"},
                {"dgate_bias", "gate_bias"},
                {"dup_bias", "up_bias"}},
    .attributes = with_needs(kGatedLinearOptions,
                             {"need_dx", "need_dgate_weight", "need_dup_weight", "need_dgate_bias", "need_dup_bias"}),
    .axes = {{"...n, ...K, Kn^transpose_weight, Kn^transpose_weight, n, n, ...n, ...n -> ...K/n, "
              "Kn^transpose_weight/..., Kn^transpose_weight/..., n/..., n/..."}},
};

Operator gated_linear_backward();

struct GatedLinear {
  explicit GatedLinear(const Call& call);

  Matmul gate_product(void* to) const;
  Matmul up_product(void* to) const;

  DType dtype;
  int64_t rows, columns, depth;  // y is [rows, columns]
  Matmul::Matrix x, gate_weight, up_weight;
  const void *gate_bias, *up_bias;
  int activation;
  void *y, *gate, *up;  // gate and up: null if not saved
};

// The operator as two products and gated_act, without a fused kernel.
size_t gated_linear_workspace(const Call& call);
Status gated_linear_in_parts(const Call& call);

}  // namespace fusedops
