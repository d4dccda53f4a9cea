// bias_act: y = act(x + bias). Its gradient: dx = dy * act'(x + bias), and dbias is the sum of dx over all rows.
#pragma once

#include "core/common/activations.h"
#include "core/common/rows.h"
#include "core/declaration/operator.h"

namespace fusedops {

// (x, bias?; activation) -> y
const Operator& bias_act();
FUSEDOPS_CUDA_KERNEL Status bias_act_cuda(const Call& call);

// (dy, x, bias?; activation, need_dx, need_dbias) -> (dx, dbias); what is not needed is returned empty.
const Operator& bias_act_backward();
FUSEDOPS_CUDA_KERNEL Status bias_act_backward_cuda(const Call& call);

// x + bias, in the compute type. An absent bias is -0: it leaves every x as it is, even -0.
template <class T>
inline constexpr compute_t<T> kNoBias = compute_t<T>(-0.0);

// The call of bias_act, its arguments by name.
template <class T>
struct BiasAct {
  enum : int { kX, kBias };

  explicit BiasAct(const Call& call);

  int activation;
  int64_t rows, size;  // without a bias, contiguous tensors are one row
  const T* x;
  int64_t x_stride;
  Parameter bias;
  T* y;  // contiguous
};

template <class T>
struct BiasActBackward {
  enum : int { kDy, kX, kBias };
  enum : int { kActivation, kNeedDx, kNeedDbias };  // of the attributes
  enum : int { kDx, kDbias };                       // of the outputs

  explicit BiasActBackward(const Call& call);

  int activation;
  int64_t rows, size;
  const T *dy, *x;
  int64_t dy_stride, x_stride;
  Parameter bias;
  T* dx;  // null: not needed
  bool need_dbias;
  View dbias;
  Slabs slabs;             // of rows, for dbias
  compute_t<T>* partials;  // [slabs][size]
};

template <class T>
BiasAct<T>::BiasAct(const Call& call)
    : activation(activations::index_of(call.attributes[0].string)),
      x(static_cast<const T*>(call.inputs[kX]->data)),
      bias(parameter(call, kBias)),
      y(static_cast<T*>(call.outputs[0].data)) {
  const Rows x_rows = as_rows(*call.inputs[kX]);
  rows = x_rows.count, size = x_rows.size, x_stride = x_rows.stride;
  if (!bias.data) join_rows(rows, size, {x_stride});
}

template <class T>
BiasActBackward<T>::BiasActBackward(const Call& call)
    : activation(activations::index_of(call.attributes[kActivation].string)),
      dy(static_cast<const T*>(call.inputs[kDy]->data)),
      x(static_cast<const T*>(call.inputs[kX]->data)),
      bias(parameter(call, kBias)),
      dx(call.attributes[kNeedDx].i64 ? static_cast<T*>(call.outputs[kDx].data) : nullptr),
      need_dbias(bias.data && call.attributes[kNeedDbias].i64),
      dbias(call.outputs[kDbias]),
      partials(static_cast<compute_t<T>*>(call.workspace)) {
  const Rows dy_rows = as_rows(*call.inputs[kDy]), x_rows = as_rows(*call.inputs[kX]);
  rows = x_rows.count, size = x_rows.size, dy_stride = dy_rows.stride, x_stride = x_rows.stride;
  if (!bias.data) join_rows(rows, size, {dy_stride, x_stride});
  slabs = slabs_of(rows);
}

}  // namespace fusedops
