// bias_act: y = act(x + bias). Gradients: dx = dy * act'(x + bias), dbias = the sum of dx over all rows.
#pragma once

#include "core/common/activations.h"
#include "core/common/float8.h"
#include "core/common/numeric.h"
#include "core/common/rows.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Signature kBiasAct{
    .name = "bias_act",
    .inputs = {in_rows("x"), optional_parameter("bias")},
    .outputs = {{"y", "x"}},
    .attributes = {activations::attribute("gelu")},
    .axes = {{"...c, c -> ...c"}},
};

Operator bias_act();
FUSEDOPS_CUDA_KERNEL Status bias_act_cuda(const Call& call);

// bias_act with an 8-bit result.
inline constexpr Signature kBiasActFloat8{
    .name = "bias_act_float8",
    .inputs = {in_rows("x"), optional_parameter("bias"), kGivenScale},
    .outputs = {kFloat8Result, kScalesResult},
    .attributes = {activations::attribute("gelu"), kScalingAttribute, kFloat8Attribute},
    .axes = {{"...C, C, ...S -> ...C, ...S", "scaling!=tensor"}, {"...C, C, 1 -> ...C, 1", "scale"}},
};

Operator bias_act_float8();
FUSEDOPS_CUDA_KERNEL Status bias_act_float8_cuda(const Call& call);

// Gradients that are not needed are returned empty.
inline constexpr Signature kBiasActBackward{
    .name = "bias_act_backward",
    .inputs = {in_rows("dy"), in_rows("x"), optional_parameter("bias")},
    .outputs = {{"dx", "x"}, {"dbias", "bias"}},
    .attributes = with_needs({activations::attribute("gelu")}, {"need_dx", "need_dbias"}),
    .axes = {{"...c, ...c, c -> ...c, c/..."}},
};

Operator bias_act_backward();
FUSEDOPS_CUDA_KERNEL Status bias_act_backward_cuda(const Call& call);

// x + bias, in the compute type. An absent bias is -0, which leaves every x unchanged, even -0.
template <class T>
inline constexpr compute_t<T> kNoBias = compute_t<T>(-0.0);

// A call of bias_act or bias_act_float8.
template <class T>
struct BiasAct {
  int activation;
  int64_t rows, size;  // without a bias or row scales, contiguous tensors are one row
  const T* x;
  int64_t x_stride;
  Parameter bias;
  T* y;  // contiguous; unused for 8-bit results: see Float8Result
};

template <const Signature& kOp, class T>
BiasAct<T> bias_act_of(const Call& call) {
  constexpr int kX = input_of(kOp, "x");
  const Rows x = as_rows(*call.inputs[kX]);
  BiasAct<T> result{.activation = activations::index_of(call.attributes[attribute_of<std::string>(kOp, "activation")]),
                    .rows = x.count,
                    .size = x.size,
                    .x = call.input<T>(kX),
                    .x_stride = x.stride,
                    .bias = parameter(call, input_of(kOp, "bias")),
                    .y = call.output<T>(output_of(kOp, "y"))};
  if (!result.bias.data && !float8_places(kOp).are_there()) join_rows(result.rows, result.size, {result.x_stride});
  return result;
}

template <class T>
struct BiasActBackward {
  explicit BiasActBackward(const Call& call)
      : activation(activations::index_of(call.attributes[attribute_of<std::string>(kBiasActBackward, "activation")])),
        dy(call.input<T>(input_of(kBiasActBackward, "dy"))),
        x(call.input<T>(input_of(kBiasActBackward, "x"))),
        bias(parameter(call, input_of(kBiasActBackward, "bias"))),
        dx(call.attributes[attribute_of<bool>(kBiasActBackward, "need_dx")]
               ? call.output<T>(output_of(kBiasActBackward, "dx"))
               : nullptr),
        need_dbias(call.inputs[input_of(kBiasActBackward, "bias")] &&
                   call.attributes[attribute_of<bool>(kBiasActBackward, "need_dbias")]),
        dbias(call.outputs[output_of(kBiasActBackward, "dbias")]),
        partials(static_cast<compute_t<T>*>(call.workspace)) {
    const Rows dy_rows = as_rows(*call.inputs[input_of(kBiasActBackward, "dy")]);
    const Rows x_rows = as_rows(*call.inputs[input_of(kBiasActBackward, "x")]);
    rows = x_rows.count, size = x_rows.size, dy_stride = dy_rows.stride, x_stride = x_rows.stride;
    if (!bias.data && !need_dbias) join_rows(rows, size, {dy_stride, x_stride});
    chunks = row_chunks_of(rows);
  }

  int activation;
  int64_t rows, size;
  const T *dy, *x;
  int64_t dy_stride, x_stride;
  Parameter bias;  // without data if x includes it already, as z of linear does
  T* dx;           // null: not needed
  bool need_dbias;
  View dbias;
  RowChunks chunks;        // row chunks of dbias
  compute_t<T>* partials;  // [chunks][size]
};

}  // namespace fusedops
