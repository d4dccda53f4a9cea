// What RMSNorm and LayerNorm share: their calls with the arguments by name, for the CPU and the CUDA kernels.
//
//   forward    y = (x - mean) * rstd * (weight + offset) + bias     RMSNorm: mean 0, no bias
//   backward   dx = rstd * (wdy - mean(wdy) - xhat * mean(wdy * xhat)) + ds     RMSNorm: without mean(wdy)
//              dweight = sum over rows of dy * xhat,  dbias = sum over rows of dy
//
// where xhat = (x - mean) * rstd and wdy = dy * (weight + offset).
#pragma once

#include "core/common/numeric.h"
#include "core/common/rows.h"
#include "core/declaration/operator.h"

namespace fusedops {

// Where an operator's declaration has what the calls below need; kNowhere where it has no such thing.
inline constexpr int kNowhere = -1;

struct NormForwardPlaces {
  int x = 0, residual = kNowhere, weight = kNowhere, bias = kNowhere;  // inputs
  int y = 0, s = kNowhere, mean = kNowhere, rstd = kNowhere;           // outputs
  int eps = 0, offset = kNowhere;                                      // attributes
};

struct NormBackwardPlaces {
  int dy = 0, x = 1, weight = 2, bias = kNowhere, mean = kNowhere, rstd, ds;  // inputs
  int dx = 0, dweight = 1, dbias = kNowhere;                                  // outputs
  int offset = kNowhere, need_dx, need_dweight, need_dbias = kNowhere;        // attributes
};

inline constexpr NormForwardPlaces kRmsNorm{.weight = 1, .rstd = 1, .offset = 1};
inline constexpr NormForwardPlaces kAddRmsNorm{.residual = 1, .weight = 2, .s = 1, .rstd = 2, .offset = 1};
inline constexpr NormForwardPlaces kLayerNorm{.weight = 1, .bias = 2, .mean = 1, .rstd = 2};
inline constexpr NormForwardPlaces kAddLayerNorm{.residual = 1, .weight = 2, .bias = 3, .s = 1, .mean = 2, .rstd = 3};

inline constexpr NormBackwardPlaces kRmsNormBackward{.rstd = 3, .ds = 4, .offset = 0, .need_dx = 1, .need_dweight = 2};
inline constexpr NormBackwardPlaces kLayerNormBackward{
    .bias = 3, .mean = 4, .rstd = 5, .ds = 6, .dbias = 2, .need_dx = 0, .need_dweight = 1, .need_dbias = 2};

// The rows of an optional input.
template <class T>
struct InputRows {
  InputRows(const Call& call, int place) {
    const View* view = place == kNowhere ? nullptr : call.inputs[place];
    if (!view) return;
    data = static_cast<const T*>(view->data);
    stride = as_rows(*view).stride;
  }

  const T* data = nullptr;
  int64_t stride = 0;
};

template <class T>
struct NormForward {
  NormForward(const Call& call, const NormForwardPlaces& at) {
    const Rows shape = as_rows(*call.inputs[at.x]);
    rows = shape.count, cols = shape.size;
    const InputRows<T> x_rows(call, at.x), residual_rows(call, at.residual);
    x = x_rows.data, x_stride = x_rows.stride;
    residual = residual_rows.data, residual_stride = residual_rows.stride;
    weight = parameter(call, at.weight);
    if (at.bias != kNowhere) bias = parameter(call, at.bias);
    if (at.offset != kNowhere) offset = call.attributes[at.offset].f64;
    eps = call.attributes[at.eps].f64;
    y = static_cast<T*>(call.outputs[at.y].data);
    if (at.s != kNowhere) s = static_cast<T*>(call.outputs[at.s].data);
    if (at.mean != kNowhere) mean = static_cast<compute_t<T>*>(call.outputs[at.mean].data);
    rstd = static_cast<compute_t<T>*>(call.outputs[at.rstd].data);
  }

  int64_t rows, cols;
  const T* x;
  int64_t x_stride;
  const T* residual;  // null: none, and s is x itself
  int64_t residual_stride;
  Parameter weight, bias;  // absent: as if weight + offset were 1 and bias 0
  double offset = 0;
  double eps;
  T* y;
  T* s = nullptr;                // x + residual, rounded; what is normalized
  compute_t<T>* mean = nullptr;  // null: RMSNorm
  compute_t<T>* rstd;
};

template <class T>
struct NormBackward {
  NormBackward(const Call& call, const NormBackwardPlaces& at) {
    const Rows shape = as_rows(*call.inputs[at.x]);
    rows = shape.count, cols = shape.size;
    const InputRows<T> dy_rows(call, at.dy), x_rows(call, at.x), ds_rows(call, at.ds);
    dy = dy_rows.data, dy_stride = dy_rows.stride;
    x = x_rows.data, x_stride = x_rows.stride;
    ds = ds_rows.data, ds_stride = ds_rows.stride;
    weight = parameter(call, at.weight);
    if (at.offset != kNowhere) offset = call.attributes[at.offset].f64;
    if (at.mean != kNowhere) mean = static_cast<const compute_t<T>*>(call.inputs[at.mean]->data);
    rstd = static_cast<const compute_t<T>*>(call.inputs[at.rstd]->data);
    if (call.attributes[at.need_dx].i64) dx = static_cast<T*>(call.outputs[at.dx].data);
    need_dweight = weight.data && call.attributes[at.need_dweight].i64;
    dweight = call.outputs[at.dweight];
    if (at.bias != kNowhere) {
      need_dbias = call.inputs[at.bias] && call.attributes[at.need_dbias].i64;
      dbias = call.outputs[at.dbias];
    }
    slabs = slabs_of(rows);
    partials = static_cast<compute_t<T>*>(call.workspace);
    row_sums = partials + (need_dweight + need_dbias) * slabs.count * cols;
  }

  int64_t rows, cols;
  const T* dy;
  int64_t dy_stride;
  const T* x;
  int64_t x_stride;
  const T* ds;  // null: none
  int64_t ds_stride;
  Parameter weight;  // absent: as if weight + offset were 1
  double offset = 0;
  const compute_t<T>* mean = nullptr;  // null: RMSNorm
  const compute_t<T>* rstd;
  T* dx = nullptr;  // null: not needed
  bool need_dweight, need_dbias = false;
  View dweight, dbias;
  Slabs slabs;
  compute_t<T>* partials;  // [slabs][cols] for dweight if that is needed, then the same for dbias
  compute_t<T>* row_sums;  // CUDA: [rows][2], for kernels that read a row more than once. CPU: weight + offset
};

Status norm_forward_rule(Rule& rule, const NormForwardPlaces& at);
Status norm_backward_rule(Rule& rule, const NormBackwardPlaces& at);

}  // namespace fusedops
