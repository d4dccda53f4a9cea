#include "ops/rotary/rope.h"

#include "ops/rotary/rope_cpu.h"

namespace fusedops {
namespace {

// Finds the dimension of x that holds the positions, counted from the last one; 0 if the rank is unknown.
Status find_seq_dim(const Rule& rule, const RotaryPlaces& at, int* place) {
  const Shape& x = rule.inputs[at.x];
  const int64_t given = rule.attributes[at.seq_dim];
  *place = 0;
  if (given >= 0 && !x.ranked) return {};
  const int64_t from_last = given < 0 ? given : given - x.rank;
  if (from_last != -3 && from_last != -2)
    return Status::error("fusedops.", public_name(rule.op), ": seq_dim must be -3 or -2; got ", std::to_string(given));
  *place = static_cast<int>(from_last);
  if (!x.ranked || x.rank >= -from_last) return {};
  return rule.must(at.x, "have at least " + std::to_string(-from_last) + " dimensions", "shape " + rule.show(x));
}

// Checks cos: [T, R/2] or [B, T, R/2], with T and B of x, R at most D.
Status check_angles(Rule& rule, const RotaryPlaces& at, int place) {
  Shape &x = rule.inputs[at.x], &cos = rule.inputs[at.cos];
  if (!cos.ranked) return {};
  if (cos.rank != 2 && cos.rank != 3) return rule.must(at.cos, "have shape [T, R/2] or [B, T, R/2]", rule.show(cos));
  if (!x.ranked || place == 0) return {};
  const bool batched = cos.rank == 3;
  Dim &time = x.dims[x.rank + place], &features = x.dims[x.rank - 1];
  if (batched && x.rank == -place)
    return rule.must(at.cos, "have shape [T, R/2] beside x of shape " + rule.show(x), rule.show(cos));
  const Dim half = cos.dims[cos.rank - 1];
  const bool narrow = half < 0 || features < 0 || half <= features / 2;
  if (narrow && rule.same(time, cos.dims[cos.rank - 2]) && (!batched || rule.same(x.dims[0], cos.dims[0]))) return {};
  const std::string most = features < 0 ? "R/2" : "R/2 <= " + rule.show(features / 2);
  const std::string batch = batched ? rule.show(x.dims[0]) + ", " : "";
  return rule.must(at.cos,
                   "have shape [" + batch + rule.show(time) + ", " + most + "] beside x of shape " + rule.show(x),
                   rule.show(cos));
}

Status rope_rule(Rule& rule) {
  constexpr RotaryPlaces kPlaces(kRope, "x");
  FUSEDOPS_TRY(check_rotation(rule, kPlaces));
  rule.outputs[output_of(kRope, "y")] = rule.inputs[kPlaces.x];
  return {};
}

template <class T, class Angle>
Status run_on_cpu(const Rope<T, Angle>& call, const Context& context) {
  const int64_t nanoseconds_per_row = 10 + call.rows.size / 4;
  context.parallel_for(call.count(), nanoseconds_per_row, [&](int64_t begin, int64_t end) {
    cpu::Rotator<T, Angle> rotator(call);
    for (int64_t row = begin; row < end; ++row)
      rotator.row(row, call.x + cpu::offset_of(call.rows, row), call.y + row * call.rows.size);
  });
  return {};
}

Status rope_cpu(const Call& call) {
  return dispatch_rope(call, [&](const auto& rope) { return run_on_cpu(rope, call.context); });
}

}  // namespace

Status check_rotation(Rule& rule, const RotaryPlaces& at) {
  FUSEDOPS_TRY(rule.floating(at.x));
  const bool narrow = size_of(rule.inputs[at.x].dtype) == 2;
  FUSEDOPS_TRY(narrow ? rule.same_dtype_or_f32(at.cos, at.x) : rule.same_dtype(at.cos, at.x));
  int place;
  FUSEDOPS_TRY(find_seq_dim(rule, at, &place));
  FUSEDOPS_TRY(check_angles(rule, at, place));
  FUSEDOPS_TRY(rule.same_as(at.sin, at.cos));
  return check_angles(rule, at, place);  // again: sin may refine cos's shape
}

Operator rope() {
  return {kRope,
          {.derivative = {{.op = "rope",
                           .inputs = {"dy", "cos", "sin"},
                           .gradients = {{"x", "y"}},
                           .attributes = {{"inverse", "inverse", /*negated=*/true}}}},
           .rule = rope_rule,
           .cpu = rope_cpu,
           .cuda = rope_cuda}};
}

}  // namespace fusedops
