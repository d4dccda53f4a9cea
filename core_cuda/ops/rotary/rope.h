// rope: rotary embedding. Each row of x is rotated pair by pair, by the angles of its position:
//   y1 = x1 * cos - x2 * sin,  y2 = x2 * cos + x1 * sin
// A row of D features begins with `half` pairs; the features behind them pass unchanged. A pair is (i, i + half), or
// (2i, 2i + 1) if interleaved. The inverse rotates by the negative angle: it is the gradient.
#pragma once

#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Signature kRope{
    .name = "rope",
    .inputs = {{"x", Kind::tensor, Layout::heads},
               {"cos", Kind::tensor, Layout::contiguous, true},
               {"sin", Kind::tensor, Layout::contiguous, true}},
    .outputs = {{"y", "x"}},
    .attributes = {{"seq_dim", Type::i64, "-3"},
                   {"interleaved", Type::boolean, "false"},
                   {"inverse", Type::boolean, "false"}},
    .axes = {{"b...ThD, ~bTF, ~bTF -> b...ThD", "seq_dim=-3"}, {"b...TD, ~bTF, ~bTF -> b...TD", "seq_dim=-2"}},
};

Operator rope();
FUSEDOPS_CUDA_KERNEL Status rope_cuda(const Call& call);

// Places of the arguments of a rotation in a signature; `x` has the rows.
struct RotaryPlaces {
  int x, cos, sin;
  AttributeIndex<int64_t> seq_dim;
  AttributeIndex<bool> interleaved;

  consteval RotaryPlaces(const Signature& op, const char* x)
      : x(input_of(op, x)),
        cos(input_of(op, "cos")),
        sin(input_of(op, "sin")),
        seq_dim(attribute_of<int64_t>(op, "seq_dim")),
        interleaved(attribute_of<bool>(op, "interleaved")) {}
};

// Checks x, cos and sin. May refine x's shape.
Status check_rotation(Rule& rule, const RotaryPlaces& at);

// A rotation. Angle is the type of cos and sin: T, or float with a 16-bit T.
template <class T, class Angle>
struct Rope {
  Rope(const Call& call, const RotaryPlaces& at, T* y, bool inverse);

  // The row of cos and sin for row (i, j, k) of x; batch is i / per_batch.
  FUSEDOPS_HD int64_t angle_row(int64_t batch, int64_t j, int64_t k) const {
    return batch * angle_strides[0] + j * angle_strides[1] + k * angle_strides[2];
  }

  int64_t count() const { return rows.sizes[0] * rows.sizes[1] * rows.sizes[2]; }

  const T* x;
  const Angle *cos, *sin;  // contiguous rows of `half` elements
  T* y;                    // contiguous
  Heads rows;              // of x
  int64_t per_batch;       // consecutive leading indices of x that share a batch of cos and sin
  int64_t angle_strides[3];
  int64_t half;
  bool interleaved, inverse;
};

template <class T, class Angle>
Rope<T, Angle>::Rope(const Call& call, const RotaryPlaces& at, T* y, bool inverse)
    : x(call.input<T>(at.x)),
      cos(call.input<Angle>(at.cos)),
      sin(call.input<Angle>(at.sin)),
      y(y),
      rows(as_heads(*call.inputs[at.x])),
      per_batch(1),
      angle_strides{0, 0, 0},
      interleaved(call.attributes[at.interleaved]),
      inverse(inverse) {
  const View &input = *call.inputs[at.x], &angles = *call.inputs[at.cos];
  half = angles.sizes[angles.rank - 1];
  const int64_t seq_dim = call.attributes[at.seq_dim];
  const bool time_is_last = (seq_dim < 0 ? seq_dim : seq_dim - input.rank) == -2;
  angle_strides[time_is_last ? 2 : 1] = 1;
  if (angles.rank == 2) return;
  // The batch is x's first dimension: the first of the merged leading ones, or the middle one of [B, T, D].
  const int64_t batch = angles.sizes[0], positions = angles.sizes[1];
  angle_strides[input.rank == 3 ? 1 : 0] = positions;
  if (input.rank > 3 && batch > 0) per_batch = rows.sizes[0] / batch;
}

// Calls body(Tag<T>, Tag<Angle>) with the types of a rotation.
template <class Body>
Status dispatch_rotation(const Call& call, const RotaryPlaces& at, Body&& body) {
  const DType angle = call.inputs[at.cos]->dtype;
  return dispatch(call.inputs[at.x]->dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    if constexpr (sizeof(T) == 2)
      if (angle == DType::f32) return body(tag, Tag<float>());
    return body(tag, tag);
  });
}

// Calls body(Rope) for a call of rope.
template <class Body>
Status dispatch_rope(const Call& call, Body&& body) {
  constexpr RotaryPlaces kPlaces(kRope, "x");
  return dispatch_rotation(call, kPlaces, [&](auto tag, auto angle) {
    using T = typename decltype(tag)::type;
    return body(Rope<T, typename decltype(angle)::type>(call, kPlaces, call.output<T>(output_of(kRope, "y")),
                                                        call.attributes[attribute_of<bool>(kRope, "inverse")]));
  });
}

}  // namespace fusedops
