// bias_act: y = act(x + bias). Its gradient: dx = dy * act'(x + bias), and dbias is the sum of dx over all rows.
#pragma once

#include "core/common/activations.h"
#include "core/common/float8.h"
#include "core/common/numeric.h"
#include "core/common/rows.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Signature kBiasAct{
    .name = "bias_act",
    .inputs = {{.name = "x", .layout = Layout::rows}, {.name = "bias", .kind = Kind::optional, .parameter = true}},
    .outputs = {{"y", "x"}},
    .attributes = {{"activation", Type::string, "gelu", activations::kNames}},
    .axes = {{"...c, c -> ...c"}},
};

const Operator& bias_act();
FUSEDOPS_CUDA_KERNEL Status bias_act_cuda(const Call& call);

// The same with a result in 8 bits.
inline constexpr Signature kBiasActFloat8{
    .name = "bias_act_float8",
    .inputs = {{.name = "x", .layout = Layout::rows},
               {.name = "bias", .kind = Kind::optional, .parameter = true},
               kGivenScale},
    .outputs = {kFloat8Result, kScalesResult},
    .attributes = {{"activation", Type::string, "gelu", activations::kNames}, kScalingAttribute, kFloat8Attribute},
    .axes = {{"...C, C, ...S -> ...C, ...S", "scaling!=tensor"}, {"...C, C, 1 -> ...C, 1", "scale"}},
};

const Operator& bias_act_float8();
FUSEDOPS_CUDA_KERNEL Status bias_act_float8_cuda(const Call& call);

// What is not needed is returned empty.
inline constexpr Signature kBiasActBackward{
    .name = "bias_act_backward",
    .inputs = {{.name = "dy", .layout = Layout::rows},
               {.name = "x", .layout = Layout::rows},
               {.name = "bias", .kind = Kind::optional, .parameter = true}},
    .outputs = {{"dx", "x"}, {"dbias", "bias"}},
    .attributes = {{"activation", Type::string, "gelu", activations::kNames},
                   {"need_dx", Type::boolean, "true"},
                   {"need_dbias", Type::boolean, "true"}},
    .axes = {{"...c, ...c, c -> ...c, c/..."}},
};

const Operator& bias_act_backward();
FUSEDOPS_CUDA_KERNEL Status bias_act_backward_cuda(const Call& call);

// x + bias, in the compute type. An absent bias is -0: it leaves every x as it is, even -0.
template <class T>
inline constexpr compute_t<T> kNoBias = compute_t<T>(-0.0);

// Where the signature of either operator has what the call below needs.
struct BiasActPlaces {
  int x, bias, y;
  AttributePlace<std::string> activation;
  Float8Places float8;

  consteval BiasActPlaces(const Signature& op)
      : x(input_of(op, "x")),
        bias(input_of(op, "bias")),
        y(output_of(op, "y")),
        activation(attribute_of<std::string>(op, "activation")),
        float8(op) {}
};

// The call of bias_act or bias_act_float8.
template <class T>
struct BiasAct {
  BiasAct(const Call& call, const BiasActPlaces& at);

  int activation;
  int64_t rows, size;  // without a bias, contiguous tensors are one row, unless rows have scales
  const T* x;
  int64_t x_stride;
  Parameter bias;
  T* y;  // contiguous; in 8 bits: the kernels have a Float8Result beside this
};

template <class T>
struct BiasActBackward {
  explicit BiasActBackward(const Call& call);

  int activation;
  int64_t rows, size;
  const T *dy, *x;
  int64_t dy_stride, x_stride;
  Parameter bias;  // without data: x holds it already, as z of linear does
  T* dx;           // null: not needed
  bool need_dbias;
  View dbias;
  Slabs slabs;             // of rows, for dbias
  compute_t<T>* partials;  // [slabs][size]
};

template <class T>
BiasAct<T>::BiasAct(const Call& call, const BiasActPlaces& at)
    : activation(activations::index_of(call.attributes[at.activation])),
      x(call.input<T>(at.x)),
      bias(parameter(call, at.bias)),
      y(call.output<T>(at.y)) {
  const Rows x_rows = as_rows(*call.inputs[at.x]);
  rows = x_rows.count, size = x_rows.size, x_stride = x_rows.stride;
  if (!bias.data && !at.float8.are_there()) join_rows(rows, size, {x_stride});
}

template <class T>
BiasActBackward<T>::BiasActBackward(const Call& call)
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
  slabs = slabs_of(rows);
}

}  // namespace fusedops
