// experts: for every token, the weighted sum of its gated feed-forward layers (experts), which a router has chosen.
//
//   z[t, k] = x[t] @ gate_up[e]^T + gate_up_bias[e]        for e = index[t, k]
//   h[t, k] = act(alpha * gate) / alpha * (up + shift)     of the two halves of z, clamped by `limit`
//   y[t]    = sum over k of weight[t, k] * (h[t, k] @ down[e]^T + down_bias[e])
//
// A pair of token and k is a slot, numbered t * K + k. Slots are sorted by expert, so that products are grouped ones.
// Tensors named `..._slots` have a row for each slot in their natural order; others have sorted rows.
#pragma once

#include "core/common/activations.h"
#include "core/common/numeric.h"
#include "core/declaration/operator.h"
#include "ops/experts/grouped_matmul.h"

namespace fusedops {

inline constexpr AttributeList kExpertsOptions{activations::attribute("silu"),
                                               kTransposeWeightAttribute,
                                               {"interleaved", Type::boolean, "false"},
                                               {.name = "limit", .value = "0", .bounds = kFiniteNotNegative},
                                               {.name = "alpha", .value = "1", .bounds = kFinitePositive},
                                               {.name = "shift", .value = "0", .bounds = kFinite}};

// x [..., in]; index and weight [..., K]; gate_up [E, 2F, in] and down [E, out, F], or [E, in, 2F] and [E, F, out] if
// transpose_weight is false. gate_up holds gates, then ups, or both in turn if it is interleaved. An index outside of
// [0, E) contributes nothing. A limit of 0 is none. z is empty unless keep is true; without it the backward
// computes it again.
inline constexpr Signature kExperts{
    .name = "experts",
    .inputs = {matrix_of_rows("x"),
               {"index"},
               {"weight"},
               weight_matrix("gate_up"),
               weight_matrix("down"),
               optional_parameter("gate_up_bias"),
               optional_parameter("down_bias")},
    .outputs = {{"y", "x"}, {"z", "x", /*saved=*/true}},
    .attributes = with_flags(kExpertsOptions, {"keep"}, "true"),
    .axes = {{"...D, ...k, ...k, EDG^transpose_weight, EFO^transpose_weight, EG, EO -> ...O/k, ...kG"}},
    .autocast = true,
};

Operator experts();

// Gradients that are not needed are empty.
inline constexpr Signature kExpertsBackward{
    .name = "experts_backward",
    .inputs = InputList{matrix_of_rows("dy")}.with(kExperts.inputs).with({optional_tensor("z")}),
    .outputs = {{"dx", "x"},
                {"dweight", "weight"},
                {"dgate_up", "gate_up"},
                {"ddown", "down"},
                {"dgate_up_bias", "gate_up_bias"},
                {"ddown_bias", "down_bias"}},
    .attributes = with_needs(kExpertsOptions, {"need_dx", "need_dweight", "need_dgate_up", "need_ddown",
                                               "need_dgate_up_bias", "need_ddown_bias"}),
    .axes = {{"...O, ...D, ...k, ...k, EDG^transpose_weight, EFO^transpose_weight, EG, EO, ...kG -> "
              "...D/k, ...k, EDG^transpose_weight/...k, EFO^transpose_weight/...k, EG/...k, EO/...k"}},
};

Operator experts_backward();

// ---- Steps of both operators. Each has a CPU and a CUDA function; experts.cpp has their sequence. ----

struct ExpertIndex {
  const void* data;  // [slots]
  bool has_64_bits;
  int64_t slots, experts;

  // The expert of a slot; -1 if the index is out of range.
  FUSEDOPS_HD int32_t expert(int64_t slot) const {
    const int64_t e = has_64_bits ? static_cast<const int64_t*>(data)[slot] : static_cast<const int32_t*>(data)[slot];
    return e >= 0 && e < experts ? static_cast<int32_t>(e) : -1;
  }
};

// A stable counting sort: order[r] is the slot of sorted row r, rows[order[r]] = r, and tokens[r] = order[r] /
// per_token. Slots without an expert follow the last offset, in order. On a GPU, tiles becomes the list of
// list_tiles_cuda().
struct ExpertOrder {
  ExpertIndex index;
  int64_t per_token;  // K
  int32_t* offsets;   // [experts + 1]
  int32_t *order, *tokens, *rows;
  void* tiles;

  Groups groups() const { return {offsets, index.experts, index.slots, tiles}; }
};

Status run_cpu(const ExpertOrder& step, const Context& context);
FUSEDOPS_CUDA_KERNEL Status run_cuda(const ExpertOrder& step, const Context& context);

// The function h of z, for a gate and an up.
struct ExpertGate {
  int activation;    // its index in activations::kNames
  bool interleaved;  // row of z: gate 0, up 0, gate 1, ...; else all gates, then all ups
  double limit;      // gate <= limit, |up| <= limit; 0: no clamp
  double alpha, shift;
  int64_t size;  // F: elements of a row of h; a row of z has twice as many

  FUSEDOPS_HD int64_t gate_at(int64_t i) const { return interleaved ? 2 * i : i; }
  FUSEDOPS_HD int64_t up_at(int64_t i) const { return interleaved ? 2 * i + 1 : size + i; }
};

template <class A>
struct GatedValue {
  A value, dgate, dup;  // h, and its derivatives
};

// The compiler drops what the caller does not read. A clamp passes NaN, and has slope 1 at the limit, as torch.clamp.
template <class Activation, class A>
FUSEDOPS_HD GatedValue<A> gated_value(const ExpertGate& options, A gate, A up) {
  const A limit = A(options.limit), alpha = A(options.alpha), inverse = A(1) / alpha;  // one division for all elements
  const bool has_limit = limit > 0;
  const bool cuts_gate = has_limit && gate > limit, cuts_up = has_limit && (up > limit || up < -limit);
  if (cuts_gate) gate = limit;
  if (cuts_up) up = up > 0 ? limit : -limit;
  const Activated<A> act = Activation::at(alpha * gate);
  const A factor = up + A(options.shift), value = act.value * inverse;
  return {value * factor, cuts_gate ? A(0) : activations::apply_slope<Activation>(factor, act.slope),
          cuts_up ? A(0) : value};
}

// z_slots = x @ gate_up^T + bias by `product`, which scatters its rows by `order`; h = the gate of z, in sorted rows.
// Slots without an expert have zeros in both. A kernel that computes both at once need not write z unless it is kept.
struct ExpertsUp {
  GroupedMatmul product;
  ExpertGate gate;
  bool keep_z;
  void* h;  // [slots, F]
};

Status run_cpu(const ExpertsUp& step, const Context& context);
FUSEDOPS_CUDA_KERNEL Status run_cuda(const ExpertsUp& step, const Context& context);

// y[t] = sum over k, in order, of weight[t, k] * from[rows[t, k]]; the slots without an expert are left out.
struct ExpertsSum {
  DType dtype;
  ExpertIndex index;
  int64_t tokens, per_token, size;
  const void* from;     // [slots, size], sorted
  const int32_t* rows;  // [slots]
  Parameter weight;     // [slots]; null: 1
  void* y;              // [tokens, size]
};

Status run_cpu(const ExpertsSum& step, const Context& context);
FUSEDOPS_CUDA_KERNEL Status run_cuda(const ExpertsSum& step, const Context& context);

// The backward of the gate, with dh = dy @ down, without the router's weights. All results but dweight in sorted rows.
// Rows past the last offset of dz and weighted_h become 0.
//   dz         = weight * dh * the derivatives of h; weighted_h = weight * h, for the gradient of down
//   dweight[s] = dh . h + dy[t] . down_bias[e]; 0 for a slot without an expert
struct ExpertsGateBackward {
  DType dtype;
  Groups groups;
  ExpertGate gate;
  const int32_t *order, *tokens;
  const void *dh, *z_slots;  // [slots, F], [slots, 2F]
  Parameter weight;          // [slots]
  const void* down_bias;     // [E, dy_size]; null: absent
  const void* dy;            // read with down_bias only
  int64_t dy_size, dy_stride;
  void *dz, *weighted_h;  // null: not needed
  void* dweight;          // [slots], of weight's dtype; null: not needed
};

Status run_cpu(const ExpertsGateBackward& step, const Context& context);
FUSEDOPS_CUDA_KERNEL Status run_cuda(const ExpertsGateBackward& step, const Context& context);

// The gradient of a bias: to[e] = sum over e's rows, in order, of weight[order[r]] * from[r].
struct ExpertsBiasGradient {
  DType dtype;
  Groups groups;
  GroupRows from;
  const int32_t* order;
  Parameter weight;  // [slots]; null: 1
  int64_t size;
  void* to;  // [E, size]
};

Status run_cpu(const ExpertsBiasGradient& step, const Context& context);
FUSEDOPS_CUDA_KERNEL Status run_cuda(const ExpertsBiasGradient& step, const Context& context);

}  // namespace fusedops
