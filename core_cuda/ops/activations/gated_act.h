// gated_act: y = act(gate) * up. Gradients: dgate = dy * up * act'(gate), dup = dy * act(gate).
//
// Without `up`, gate is packed: each row holds the gate, then as many elements of up. So does its gradient.
#pragma once

#include "core/common/activations.h"
#include "core/common/float8.h"
#include "core/common/rows.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Input kOptionalUp{.name = "up", .kind = Kind::optional, .layout = Layout::rows};

inline constexpr Signature kGatedAct{
    .name = "gated_act",
    .inputs = {in_rows("gate"), kOptionalUp},
    .outputs = {{"y", "gate"}},
    .attributes = {activations::attribute("silu")},
    .axes = {{"...c, ...c -> ...c", "up"}, {"...C, ...C -> ...C"}},
};

Operator gated_act();
FUSEDOPS_CUDA_KERNEL Status gated_act_cuda(const Call& call);

// gated_act with an 8-bit result.
inline constexpr Signature kGatedActFloat8{
    .name = "gated_act_float8",
    .inputs = {in_rows("gate"), kOptionalUp, kGivenScale},
    .outputs = {kFloat8Result, {"scales", "compute(gate)"}},
    .attributes = {activations::attribute("silu"), kScalingAttribute, kFloat8Attribute},
    .axes = {{"...C, ...C, ...S -> ...C, ...S", "scaling!=tensor"}, {"...C, ...C, 1 -> ...C, 1", "scale"}},
};

Operator gated_act_float8();
FUSEDOPS_CUDA_KERNEL Status gated_act_float8_cuda(const Call& call);

// Gradients that are not needed are returned empty.
inline constexpr Signature kGatedActBackward{
    .name = "gated_act_backward",
    .inputs = {in_rows("dy"), in_rows("gate"), kOptionalUp},
    .outputs = {{"dgate", "gate"}, {"dup", "gate"}},
    .attributes = with_needs({activations::attribute("silu")}, {"need_dgate", "need_dup"}),
    .axes = {{"...c, ...c, ...c -> ...c, ...c", "up"}, {"...C, ...C, ...C -> ...C, ...C"}},
};

Operator gated_act_backward();
FUSEDOPS_CUDA_KERNEL Status gated_act_backward_cuda(const Call& call);

// gate and up, or the halves of a packed gate.
template <class T>
struct Gated {
  Gated(const View& gates, const View* ups) : gate(static_cast<const T*>(gates.data)) {
    const Rows all = as_rows(gates);
    rows = all.count, gate_stride = up_stride = all.stride;
    size = ups ? all.size : all.size / 2;
    up = ups ? static_cast<const T*>(ups->data) : gate + size;
    if (ups) up_stride = as_rows(*ups).stride;
  }

  int64_t rows, size;
  const T *gate, *up;
  int64_t gate_stride, up_stride;
};

// A call of gated_act or gated_act_float8.
template <class T>
struct GatedAct : Gated<T> {
  int activation;
  T* y;  // contiguous; unused for 8-bit results: see Float8Result
};

template <const Signature& kOp, class T>
GatedAct<T> gated_act_of(const Call& call) {
  GatedAct<T> result{{*call.inputs[input_of(kOp, "gate")], call.inputs[input_of(kOp, "up")]},
                     activations::index_of(call.attributes[attribute_of<std::string>(kOp, "activation")]),
                     call.output<T>(output_of(kOp, "y"))};
  if (!float8_places(kOp).are_there()) join_rows(result.rows, result.size, {result.gate_stride, result.up_stride});
  return result;
}

template <class T>
struct GatedActBackward : Gated<T> {
  explicit GatedActBackward(const Call& call)
      : Gated<T>(*call.inputs[input_of(kGatedActBackward, "gate")], call.inputs[input_of(kGatedActBackward, "up")]),
        activation(activations::index_of(call.attributes[attribute_of<std::string>(kGatedActBackward, "activation")])),
        dy(call.input<T>(input_of(kGatedActBackward, "dy"))),
        dy_stride(as_rows(*call.inputs[input_of(kGatedActBackward, "dy")]).stride) {
    const bool packed = !call.inputs[input_of(kGatedActBackward, "up")];
    out_stride = packed ? 2 * this->size : this->size;
    if (call.attributes[attribute_of<bool>(kGatedActBackward, "need_dgate")]) {
      dgate = call.output<T>(output_of(kGatedActBackward, "dgate"));
      if (packed) dup = dgate + this->size;
    }
    if (!packed && call.attributes[attribute_of<bool>(kGatedActBackward, "need_dup")])
      dup = call.output<T>(output_of(kGatedActBackward, "dup"));
    join_rows(this->rows, this->size, {this->gate_stride, this->up_stride, dy_stride, out_stride});
  }

  int activation;
  const T* dy;
  int64_t dy_stride;
  T *dgate = nullptr, *dup = nullptr;  // null: not needed
  int64_t out_stride;                  // of dgate and dup
};

}  // namespace fusedops
