// rms_norm_rope: y = rope(rms_norm(x)), for each row of x, as queries and keys of attention are normalized and rotated.
//   backward, with R the rotation and xhat = x * rstd: dz = R^-1 dy, and dx and dweight are those of rms_norm for dz
//
// norm.h and rope.h have both formulas. 16-bit values are rounded once, after the rotation.
#pragma once

#include <algorithm>

#include "ops/normalization/norm.h"
#include "ops/rotary/rope.h"

namespace fusedops {

inline constexpr Input kCosParameter{"cos", Kind::tensor, Layout::contiguous, /*parameter=*/true},
    kSinParameter{"sin", Kind::tensor, Layout::contiguous, /*parameter=*/true};
inline constexpr Attribute kSeqDim{.name = "seq_dim", .type = Type::i64, .value = "-3", .bounds = Bounds{-3, -2}},
    kInterleaved{"interleaved", Type::boolean, "false"};

inline constexpr Signature kRmsNormRope{
    .name = "rms_norm_rope",
    .inputs = {{"x", Kind::tensor, Layout::heads}, optional_parameter("weight"), kCosParameter, kSinParameter},
    .outputs = {{"y", "x"}, kSavedRstd},
    .attributes = {kRmsEps, kWeightOffset, kSeqDim, kInterleaved},
    .axes = {{"b...ThC, C, ~bTF, ~bTF -> b...ThC, b...Th", "seq_dim=-3"},
             {"b...TC, C, ~bTF, ~bTF -> b...TC, b...T", "seq_dim=-2"}},
};

inline constexpr Signature kRmsNormRopeBackward{
    .name = "rms_norm_rope_backward",
    .inputs = {{"dy", Kind::tensor, Layout::heads},
               {"x", Kind::tensor, Layout::heads},
               optional_parameter("weight"),
               kCosParameter,
               kSinParameter,
               kRstdOfX},
    .outputs = {{"dx", "x"}, {"dweight", "weight"}},
    .attributes = {kWeightOffset,
                   kSeqDim,
                   kInterleaved,
                   {"need_dx", Type::boolean, "true"},
                   {"need_dweight", Type::boolean, "true"}},
    .axes = {{"b...ThC, b...ThC, C, ~bTF, ~bTF, b...Th -> b...ThC, C/b...h", "seq_dim=-3"},
             {"b...TC, b...TC, C, ~bTF, ~bTF, b...T -> b...TC, C/b...", "seq_dim=-2"}},
};

Operator rms_norm_rope();
FUSEDOPS_CUDA_KERNEL Status rms_norm_rope_cuda(const Call& call);
Operator rms_norm_rope_backward();
FUSEDOPS_CUDA_KERNEL Status rms_norm_rope_backward_cuda(const Call& call);

// A call of either operator. The rotation is of x, or of dy in the backward.
template <class T, class Angle>
struct NormRope {
  using A = compute_t<T>;

  explicit NormRope(const Call& call, bool is_backward);

  Rope<T, Angle> rope;
  const T* x;
  Heads x_rows;
  Parameter weight;  // absent: as if weight + offset were 1
  A offset, eps;
  A* rstd;
  bool need_dx, need_dweight;
  View dweight;
  A* partials;  // [row chunks][features], for dweight
};

template <class T, class Angle>
NormRope<T, Angle>::NormRope(const Call& call, bool is_backward)
    : rope(is_backward ? Rope<T, Angle>(call, RotaryPlaces(kRmsNormRopeBackward, "dy"),
                                        call.output<T>(output_of(kRmsNormRopeBackward, "dx")), /*inverse=*/true)
                       : Rope<T, Angle>(call, RotaryPlaces(kRmsNormRope, "x"),
                                        call.output<T>(output_of(kRmsNormRope, "y")), /*inverse=*/false)),
      partials(static_cast<A*>(call.workspace)) {
  const int place = is_backward ? input_of(kRmsNormRopeBackward, "x") : input_of(kRmsNormRope, "x");
  x = call.input<T>(place);
  x_rows = as_heads(*call.inputs[place]);
  if (is_backward) {
    constexpr const Signature& kOp = kRmsNormRopeBackward;
    weight = parameter(call, input_of(kOp, "weight"));
    offset = static_cast<A>(call.attributes[attribute_of<double>(kOp, "weight_offset")]);
    rstd = const_cast<A*>(call.input<A>(input_of(kOp, "rstd")));
    need_dx = call.attributes[attribute_of<bool>(kOp, "need_dx")];
    need_dweight = weight.data && call.attributes[attribute_of<bool>(kOp, "need_dweight")];
    dweight = call.outputs[output_of(kOp, "dweight")];
  } else {
    constexpr const Signature& kOp = kRmsNormRope;
    weight = parameter(call, input_of(kOp, "weight"));
    offset = static_cast<A>(call.attributes[attribute_of<double>(kOp, "weight_offset")]);
    eps = static_cast<A>(call.attributes[attribute_of<double>(kOp, "eps")]);
    rstd = call.output<A>(output_of(kOp, "rstd"));
  }
}

// The lanes of a row on a GPU, and the row chunks of dweight. Both follow from the shape and the dtype alone.
struct NormRopePlan {
  NormRopePlan(int64_t rows, int64_t size, int64_t half, DType dtype) {
    const int64_t pack = 16 / static_cast<int64_t>(size_of(dtype));
    width = size % pack == 0 && half % pack == 0 ? pack : 1;
    pair_slots = half / width;
    slots = pair_slots + ((size - 2 * half) / width + 1) / 2;
    while (lanes < 32 && lanes < slots) lanes *= 2, ++lane_shift;
    // Further slots of a lane have their sums in memory, which no other row may share.
    groups = slots <= lanes ? kBlockThreads / lanes : 1;
    chunks.rows = std::min(groups, 32) * kSteps;
    chunks.count = (rows + chunks.rows - 1) / chunks.rows;
  }

  static constexpr int kBlockThreads = 256, kSteps = 16;

  int64_t width;              // elements of a pack
  int64_t pair_slots, slots;  // a slot is two packs: of pairs, or of features behind them
  int lanes = 4;              // threads of a row: a power of two, up to 32
  int lane_shift = 2;         // its logarithm
  int groups;                 // rows of a block of the backward, side by side
  RowChunks chunks;
};

}  // namespace fusedops
