#include "ops/rotary/rope.h"

#include "core/cpu/elementwise.h"

namespace fusedops {
namespace {

constexpr int kX = input_of(kRope, "x"), kCos = input_of(kRope, "cos"), kSin = input_of(kRope, "sin");

// Finds the dimension of x that holds the positions, counted from the last one; 0 if the rank is unknown.
Status find_seq_dim(const Rule& rule, int* place) {
  const Shape& x = rule.inputs[kX];
  const int64_t given = rule.attributes[attribute_of<int64_t>(kRope, "seq_dim")];
  *place = 0;
  if (given >= 0 && !x.ranked) return {};
  const int64_t from_last = given < 0 ? given : given - x.rank;
  if (from_last != -3 && from_last != -2)
    return Status::error("fusedops.", rule.op.name, ": seq_dim must be -3 or -2; got ", std::to_string(given));
  *place = static_cast<int>(from_last);
  if (!x.ranked || x.rank >= -from_last) return {};
  return rule.must(kX, "have at least " + std::to_string(-from_last) + " dimensions", "shape " + rule.show(x));
}

// Checks cos: [T, R/2] or [B, T, R/2], with T and B of x, R at most D.
Status check_angles(Rule& rule, int place) {
  Shape &x = rule.inputs[kX], &cos = rule.inputs[kCos];
  if (!cos.ranked) return {};
  if (cos.rank != 2 && cos.rank != 3) return rule.must(kCos, "have shape [T, R/2] or [B, T, R/2]", rule.show(cos));
  if (!x.ranked || place == 0) return {};
  const bool batched = cos.rank == 3;
  Dim &time = x.dims[x.rank + place], &features = x.dims[x.rank - 1];
  if (batched && x.rank == -place)
    return rule.must(kCos, "have shape [T, R/2] beside x of shape " + rule.show(x), rule.show(cos));
  const Dim half = cos.dims[cos.rank - 1];
  const bool narrow = half < 0 || features < 0 || half <= features / 2;
  if (narrow && rule.same(time, cos.dims[cos.rank - 2]) && (!batched || rule.same(x.dims[0], cos.dims[0]))) return {};
  const std::string most = features < 0 ? "R/2" : "R/2 <= " + rule.show(features / 2);
  const std::string batch = batched ? rule.show(x.dims[0]) + ", " : "";
  return rule.must(kCos, "have shape [" + batch + rule.show(time) + ", " + most + "] beside x of shape " + rule.show(x),
                   rule.show(cos));
}

Status rope_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(kX));
  Shape& x = rule.inputs[kX];
  const bool narrow = size_of(x.dtype) == 2;
  FUSEDOPS_TRY(narrow ? rule.same_dtype_or_f32(kCos, kX) : rule.same_dtype(kCos, kX));
  int place;
  FUSEDOPS_TRY(find_seq_dim(rule, &place));
  FUSEDOPS_TRY(check_angles(rule, place));
  FUSEDOPS_TRY(rule.same_as(kSin, kCos));
  FUSEDOPS_TRY(check_angles(rule, place));  // again: sin may refine cos's shape
  rule.outputs[output_of(kRope, "y")] = x;
  return {};
}

// Products and sums round separately: a fused multiply-add would skip an overflow of one of the two products.
#if defined(__clang__)
#pragma clang fp contract(off)
#define FUSEDOPS_UNFUSED
#else
#define FUSEDOPS_UNFUSED __attribute__((noinline, optimize("fp-contract=off")))
#endif

template <class A>
FUSEDOPS_UNFUSED void rotate(int64_t n, const A* x1, const A* x2, const A* cos, const A* sin, A sign, A* y1, A* y2) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const A s = sign * sin[i], a = x1[i], b = x2[i];
    y1[i] = a * cos[i] - b * s;
    y2[i] = b * cos[i] + a * s;
  }
}

// Rotates the pairs of consecutive rows, at most kBlock pairs at a time.
template <class T, class Angle>
class Rotator {
 public:
  using A = compute_t<T>;

  explicit Rotator(const Rope<T, Angle>& call) : call_(call) {}

  void row(const T* x, int64_t angles, T* y) {
    for (int64_t start = 0; start < call_.half; start += cpu::kBlock) {
      const int64_t n = std::min(cpu::kBlock, call_.half - start);
      if (angles != angles_ || call_.half > cpu::kBlock) {
        cos_ = cpu::widened(call_.cos + angles * call_.half + start, cos_buffer_, n);
        sin_ = cpu::widened(call_.sin + angles * call_.half + start, sin_buffer_, n);
      }
      call_.interleaved ? neighbours(n, x + 2 * start, y + 2 * start) : halves(n, x + start, y + start);
    }
    angles_ = angles;  // shared by the heads of one position
  }

 private:
  void halves(int64_t n, const T* x, T* y) {
    const A *x1 = cpu::widened(x, x1_, n), *x2 = cpu::widened(x + call_.half, x2_, n);
    if constexpr (std::is_same_v<T, A>) {
      rotate(n, x1, x2, cos_, sin_, sign_, y, y + call_.half);
    } else {
      rotate(n, x1, x2, cos_, sin_, sign_, y1_, y2_);
      cpu::narrow(y1_, y, n);
      cpu::narrow(y2_, y + call_.half, n);
    }
  }

  void neighbours(int64_t n, const T* x, T* y) {
    for (int64_t i = 0; i < n; ++i) {
      x1_[i] = to_compute(x[2 * i]);
      x2_[i] = to_compute(x[2 * i + 1]);
    }
    rotate(n, x1_, x2_, cos_, sin_, sign_, y1_, y2_);
    for (int64_t i = 0; i < n; ++i) {
      y[2 * i] = from_compute<T>(y1_[i]);
      y[2 * i + 1] = from_compute<T>(y2_[i]);
    }
  }

  const Rope<T, Angle>& call_;
  const A sign_ = call_.inverse ? -1 : 1;
  int64_t angles_ = -1;
  const A *cos_ = nullptr, *sin_ = nullptr;
  A cos_buffer_[cpu::kBlock], sin_buffer_[cpu::kBlock];
  A x1_[cpu::kBlock], x2_[cpu::kBlock], y1_[cpu::kBlock], y2_[cpu::kBlock];
};

template <class T, class Angle>
Status run_on_cpu(const Rope<T, Angle>& call, const Context& context) {
  const Heads& rows = call.rows;
  const int64_t count = rows.sizes[0] * rows.sizes[1] * rows.sizes[2], rotated = 2 * call.half;
  const int64_t nanoseconds_per_row = 10 + rows.size / 4;
  context.parallel_for(count, nanoseconds_per_row, [&](int64_t begin, int64_t end) {
    Rotator<T, Angle> rotator(call);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t k = row % rows.sizes[2], j = row / rows.sizes[2] % rows.sizes[1];
      const int64_t i = row / rows.sizes[2] / rows.sizes[1];
      const T* x = call.x + i * rows.strides[0] + j * rows.strides[1] + k * rows.strides[2];
      T* y = call.y + row * rows.size;
      rotator.row(x, call.angle_row(i / call.per_batch, j, k), y);
      std::copy_n(x + rotated, rows.size - rotated, y + rotated);
    }
  });
  return {};
}

Status rope_cpu(const Call& call) {
  return dispatch_rope(call, [&](const auto& rope) { return run_on_cpu(rope, call.context); });
}

}  // namespace

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
