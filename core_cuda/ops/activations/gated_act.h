// gated_act: y = act(gate) * up. Its gradient: dgate = dy * up * act'(gate), dup = dy * act(gate).
//
// Without `up`, gate is packed: each row holds the gate, then as many elements of up; and so does its gradient.
#pragma once

#include "core/common/activations.h"
#include "core/common/rows.h"
#include "core/declaration/operator.h"

namespace fusedops {

// (gate, up?; activation) -> y
const Operator& gated_act();
FUSEDOPS_CUDA_KERNEL Status gated_act_cuda(const Call& call);

// (dy, gate, up?; activation, need_dgate, need_dup) -> (dgate, dup); what is not needed is returned empty.
const Operator& gated_act_backward();
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

// The call of gated_act, its arguments by name.
template <class T>
struct GatedAct : Gated<T> {
  enum : int { kGate, kUp };

  explicit GatedAct(const Call& call)
      : Gated<T>(*call.inputs[kGate], call.inputs[kUp]),
        activation(activations::index_of(call.attributes[0].string)),
        y(static_cast<T*>(call.outputs[0].data)) {
    join_rows(this->rows, this->size, {this->gate_stride, this->up_stride});
  }

  int activation;
  T* y;  // contiguous
};

template <class T>
struct GatedActBackward : Gated<T> {
  enum : int { kDy, kGate, kUp };
  enum : int { kActivation, kNeedDgate, kNeedDup };  // of the attributes
  enum : int { kDgate, kDup };                       // of the outputs

  explicit GatedActBackward(const Call& call)
      : Gated<T>(*call.inputs[kGate], call.inputs[kUp]),
        activation(activations::index_of(call.attributes[kActivation].string)),
        dy(static_cast<const T*>(call.inputs[kDy]->data)),
        dy_stride(as_rows(*call.inputs[kDy]).stride) {
    const bool packed = !call.inputs[kUp];
    out_stride = packed ? 2 * this->size : this->size;
    if (call.attributes[kNeedDgate].i64) {
      dgate = static_cast<T*>(call.outputs[kDgate].data);
      if (packed) dup = dgate + this->size;
    }
    if (!packed && call.attributes[kNeedDup].i64) dup = static_cast<T*>(call.outputs[kDup].data);
    join_rows(this->rows, this->size, {this->gate_stride, this->up_stride, dy_stride, out_stride});
  }

  int activation;
  const T* dy;
  int64_t dy_stride;
  T *dgate = nullptr, *dup = nullptr;  // null: not needed
  int64_t out_stride;                  // of dgate and dup
};

}  // namespace fusedops
