// rope: rotary embedding. Each row of x is rotated pair by pair, by the angles of its position:
//   y1 = x1 * cos - x2 * sin,  y2 = x2 * cos + x1 * sin
// A row of D features begins with `half` pairs; the features behind them pass unchanged. A pair is (i, i + half), or
// (2i, 2i + 1) if interleaved. The inverse rotates by the negative angle: it is the gradient.
#pragma once

#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

// (x, cos, sin; seq_dim, interleaved, inverse) -> y
const Operator& rope();
FUSEDOPS_CUDA_KERNEL Status rope_cuda(const Call& call);

// The call of rope, its arguments by name. Angle is the type of cos and sin: T, or float beside 16 bits.
template <class T, class Angle>
struct Rope {
  enum : int { kX, kCos, kSin };
  enum : int { kSeqDim, kInterleaved, kInverse };  // of the attributes

  explicit Rope(const Call& call);

  // The row of cos and sin for row (i, j, k) of x; batch is i / per_batch.
  FUSEDOPS_HD int64_t angle_row(int64_t batch, int64_t j, int64_t k) const {
    return batch * angle_strides[0] + j * angle_strides[1] + k * angle_strides[2];
  }

  const T* x;
  const Angle *cos, *sin;  // contiguous rows of `half`
  T* y;                    // contiguous
  Heads rows;              // of x
  int64_t per_batch;       // how many of x's leading dimensions as one share a batch of cos and sin
  int64_t angle_strides[3];
  int64_t half;
  bool interleaved, inverse;
};

template <class T, class Angle>
Rope<T, Angle>::Rope(const Call& call)
    : x(static_cast<const T*>(call.inputs[kX]->data)),
      cos(static_cast<const Angle*>(call.inputs[kCos]->data)),
      sin(static_cast<const Angle*>(call.inputs[kSin]->data)),
      y(static_cast<T*>(call.outputs[0].data)),
      rows(as_heads(*call.inputs[kX])),
      per_batch(1),
      angle_strides{0, 0, 0},
      half(call.inputs[kCos]->sizes[call.inputs[kCos]->rank - 1]),
      interleaved(call.attributes[kInterleaved].i64),
      inverse(call.attributes[kInverse].i64) {
  const View &input = *call.inputs[kX], &angles = *call.inputs[kCos];
  const int64_t seq_dim = call.attributes[kSeqDim].i64;
  const bool time_is_last = (seq_dim < 0 ? seq_dim : seq_dim - input.rank) == -2;
  angle_strides[time_is_last ? 2 : 1] = 1;
  if (angles.rank == 2) return;
  // The batch is x's first dimension: the first of those that are walked as one, or the middle one of [B, T, D].
  const int64_t batch = angles.sizes[0], positions = angles.sizes[1];
  angle_strides[input.rank == 3 ? 1 : 0] = positions;
  if (input.rank > 3 && batch > 0) per_batch = rows.sizes[0] / batch;
}

// Calls body(Rope) with the types of the call.
template <class Body>
Status dispatch_rope(const Call& call, Body&& body) {
  const DType angle = call.inputs[1]->dtype;
  return dispatch(call.outputs[0].dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    if constexpr (sizeof(T) == 2)
      if (angle == DType::f32) return body(Rope<T, float>(call));
    return body(Rope<T, T>(call));
  });
}

}  // namespace fusedops
