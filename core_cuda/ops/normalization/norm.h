// RMSNorm and LayerNorm: their calls, for the CPU and the CUDA kernels, and what both declare.
//
//   forward    y = (x - mean) * rstd * (weight + offset) + bias     RMSNorm: mean 0, no bias
//   backward   dx = rstd * (wdy - mean(wdy) - xhat * mean(wdy * xhat)) + ds     RMSNorm: without mean(wdy)
//              dweight = sum over rows of dy * xhat,  dbias = sum over rows of dy
//
// where xhat = (x - mean) * rstd and wdy = dy * (weight + offset). With a residual, x stands for s = x + residual. With
// dropout it stands for s = dropout(x) + residual: dx is the gradient of the residual, and dropout(dx) that of x.
#pragma once

#include "core/common/dropout.h"
#include "core/common/float8.h"
#include "core/common/numeric.h"
#include "core/common/rows.h"
#include "core/declaration/operator.h"

namespace fusedops {

// Where the signature of a norm has what the calls below need. Some of it may be absent; a name that is not listed here
// does not compile.
struct NormForwardPlaces {
  int x, residual, seed, weight, bias;  // inputs
  int y, s, mean, rstd;                 // outputs
  AttributePlace<double> eps, offset, dropout;
  Float8Places float8;

  consteval NormForwardPlaces(const Signature& op)
      : x(input_of(op, "x")),
        residual(find_input(op, "residual")),
        seed(find_input(op, "seed")),
        weight(input_of(op, "weight")),
        bias(find_input(op, "bias")),
        y(output_of(op, "y")),
        s(find_output(op, "s")),
        mean(find_output(op, "mean")),
        rstd(find_output(op, "rstd")),
        eps(attribute_of<double>(op, "eps")),
        offset(find_attribute<double>(op, "weight_offset")),
        dropout(find_attribute<double>(op, "dropout")),
        float8(op) {
    has_only(op, {x, residual, seed, weight, bias, float8.scale}, {y, s, mean, rstd, float8.scales},
             {eps.place, offset.place, dropout.place, float8.scaling.place, float8.dtype.place});
  }

  constexpr bool is_centered() const { return bias != kNowhere; }  // LayerNorm
};

struct NormBackwardPlaces {
  int dy, x, weight, bias, mean, rstd, ds, seed;  // inputs
  int dx, dweight, dbias, dropped_dx;             // outputs
  AttributePlace<double> offset, dropout;
  AttributePlace<bool> need_dx, need_dweight, need_dbias, need_dropped_dx;

  consteval NormBackwardPlaces(const Signature& op)
      : dy(input_of(op, "dy")),
        x(input_of(op, "x")),
        weight(input_of(op, "weight")),
        bias(find_input(op, "bias")),
        mean(find_input(op, "mean")),
        rstd(input_of(op, "rstd")),
        ds(input_of(op, "ds")),
        seed(input_of(op, "seed")),
        dx(output_of(op, "dx")),
        dweight(output_of(op, "dweight")),
        dbias(find_output(op, "dbias")),
        dropped_dx(output_of(op, "dropped_dx")),
        offset(find_attribute<double>(op, "weight_offset")),
        dropout(attribute_of<double>(op, "dropout")),
        need_dx(attribute_of<bool>(op, "need_dx")),
        need_dweight(attribute_of<bool>(op, "need_dweight")),
        need_dbias(find_attribute<bool>(op, "need_dbias")),
        need_dropped_dx(attribute_of<bool>(op, "need_dropped_dx")) {
    has_only(op, {dy, x, weight, bias, mean, rstd, ds, seed}, {dx, dweight, dbias, dropped_dx},
             {offset.place, dropout.place, need_dx.place, need_dweight.place, need_dbias.place, need_dropped_dx.place});
  }
};

// The offset of RMSNorm's weight; LayerNorm has none.
inline double weight_offset(const Call& call, AttributePlace<double> at) {
  return at.place == kNowhere ? 0 : call.attributes[at];
}

// The rows of an optional input.
template <class T>
struct InputRows {
  InputRows(const Call& call, int place) {
    if (place == kNowhere || !call.inputs[place]) return;
    data = call.input<T>(place);
    stride = as_rows(*call.inputs[place]).stride;
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
    if (at.seed != kNowhere) added.dropout = Dropout(call, at.seed, call.attributes[at.dropout]);
    weight = parameter(call, at.weight);
    if (at.bias != kNowhere) bias = parameter(call, at.bias);
    offset = weight_offset(call, at.offset);
    eps = call.attributes[at.eps];
    y = call.output<T>(at.y);
    if (at.s != kNowhere) s = call.output<T>(at.s);
    if (at.mean != kNowhere) mean = call.output<compute_t<T>>(at.mean);
    if (at.rstd != kNowhere) rstd = call.output<compute_t<T>>(at.rstd);
  }

  int64_t rows, cols;
  const T* x;
  int64_t x_stride;
  const T* residual;  // null: none, and s is x itself
  int64_t residual_stride;
  DropoutAdd added;        // what s is of x and the residual, unless there is no seed, and s is their sum
  Parameter weight, bias;  // absent: as if weight + offset were 1 and bias 0
  double offset;
  double eps;
  T* y;                          // in 8 bits: the kernels have a Float8Result beside this
  T* s = nullptr;                // rounded; what is normalized
  compute_t<T>* mean = nullptr;  // null: RMSNorm, or nobody reads the statistics
  compute_t<T>* rstd = nullptr;
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
    offset = weight_offset(call, at.offset);
    if (at.mean != kNowhere) mean = call.input<compute_t<T>>(at.mean);
    rstd = call.input<compute_t<T>>(at.rstd);
    if (call.attributes[at.need_dx]) dx = call.output<T>(at.dx);
    dropout = Dropout(call, at.seed, call.attributes[at.dropout]);
    if (dropout.seed && call.attributes[at.need_dropped_dx]) dropped_dx = call.output<T>(at.dropped_dx);
    need_dweight = weight.data && call.attributes[at.need_dweight];
    dweight = call.outputs[at.dweight];
    if (at.bias != kNowhere) {
      need_dbias = call.inputs[at.bias] && call.attributes[at.need_dbias];
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
  double offset;
  const compute_t<T>* mean = nullptr;  // null: RMSNorm
  const compute_t<T>* rstd;
  Dropout dropout;
  T *dx = nullptr, *dropped_dx = nullptr;  // null: not needed
  bool need_dweight, need_dbias = false;
  View dweight, dbias;
  Slabs slabs;
  compute_t<T>* partials;  // [slabs][cols] for dweight if that is needed, then the same for dbias
  compute_t<T>* row_sums;  // CUDA: [rows][2], for kernels that read a row more than once. CPU: weight + offset
};

Status norm_forward_rule(Rule& rule, const NormForwardPlaces& at);
size_t norm_forward_workspace(const Call& call, const NormForwardPlaces& at);
Status norm_forward_cpu(const Call& call, const NormForwardPlaces& at);

Status norm_backward_rule(Rule& rule, const NormBackwardPlaces& at);
size_t norm_backward_workspace(const Call& call, const NormBackwardPlaces& at);
Status norm_backward_cpu(const Call& call, const NormBackwardPlaces& at);

}  // namespace fusedops
