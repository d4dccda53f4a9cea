// Rules and CPU kernels of rms_norm_rope. Limit: memory bandwidth. A row stays in the L1 cache for all its passes.
#include "ops/normalization/rms_norm_rope.h"

#include "core/cpu/row_blocks.h"
#include "core/cpu/scratch.h"
#include "ops/normalization/norm_cpu.h"
#include "ops/rotary/rope_cpu.h"

namespace fusedops {
namespace {

constexpr RotaryPlaces kForward(kRmsNormRope, "x"), kBackward(kRmsNormRopeBackward, "x");

Status forward_rule(Rule& rule) {
  FUSEDOPS_TRY(check_rotation(rule, kForward));
  FUSEDOPS_TRY(rule.per_column(input_of(kRmsNormRope, "weight"), kForward.x));
  rule.outputs[output_of(kRmsNormRope, "y")] = rule.inputs[kForward.x];
  rule.outputs[output_of(kRmsNormRope, "rstd")] =
      rule.row_shape(kForward.x, compute_dtype(rule.inputs[kForward.x].dtype));
  return {};
}

Status backward_rule(Rule& rule) {
  constexpr const Signature& kOp = kRmsNormRopeBackward;
  constexpr int kX = kBackward.x, kWeight = input_of(kOp, "weight");
  FUSEDOPS_TRY(rule.same_as(input_of(kOp, "dy"), kX));
  FUSEDOPS_TRY(check_rotation(rule, kBackward));
  FUSEDOPS_TRY(rule.per_column(kWeight, kX));
  FUSEDOPS_TRY(rule.per_row(input_of(kOp, "rstd"), kX));
  const auto is_wanted = [&](AttributeIndex<bool> need) { return rule.attributes[need]; };
  rule.outputs[output_of(kOp, "dx")] = rule.gradient(kX, is_wanted(attribute_of<bool>(kOp, "need_dx")), kX);
  rule.outputs[output_of(kOp, "dweight")] =
      rule.gradient(kWeight, is_wanted(attribute_of<bool>(kOp, "need_dweight")), kX);
  return {};
}

// Rows of a call in the compute type, in the memory of one task.
template <class T, class Angle>
class NormRopeRows {
 public:
  using A = compute_t<T>;

  explicit NormRopeRows(const NormRope<T, Angle>& call)
      : call_(call), size_(call.rope.rows.size), memory_(cpu::scratch<A>(3 * size_)), rotator_(call.rope) {
    for (int64_t j = 0; j < size_; ++j)
      factor()[j] = call.weight.data ? call.weight.template get<T>(j) + call.offset : A(1);
  }

  void forward(int64_t row) {
    const A* x = wide_x(row);
    const A rstd = cpu::rms_of(x, size_, call_.eps).rstd;
    call_.rstd[row] = rstd;
    cpu::apply_block([rstd](A x, A factor) { return x * rstd * factor; }, size_, rotated(), x, factor());
    rotator_.row(row, rotated(), call_.rope.y + row * size_);
  }

  // `dweight`: the sums of the row chunk, or null.
  void backward(int64_t row, A* dweight) {
    const A* x = wide_x(row);
    const A rstd = call_.rstd[row];
    rotator_.row(row, call_.rope.x + cpu::offset_of(call_.rope.rows, row), rotated());
    const auto terms = [rstd](int64_t, int64_t n, const A* dz, const A* x, const A* factor) {
      return cpu::interleaved_sum<A>(n, [=](int64_t i) { return dz[i] * factor[i] * (x[i] * rstd); });
    };
    const A mean = cpu::sum_of_blocks<A, A>(size_, terms, rotated(), x, factor()) / A(size_);
    if (dweight)
      for (int64_t j = 0; j < size_; ++j) dweight[j] += rotated()[j] * (x[j] * rstd);
    if (!call_.need_dx) return;
    const auto slope = [=](A dz, A x, A factor) { return rstd * (dz * factor - x * rstd * mean); };
    cpu::apply_block(slope, size_, rotated(), rotated(), x, factor());
    T* dx = call_.rope.y + row * size_;
    if constexpr (std::is_same_v<T, A>)
      std::copy_n(rotated(), size_, dx);
    else
      cpu::narrow(rotated(), dx, size_);
  }

 private:
  A* factor() const { return memory_.get(); }  // weight + offset
  A* rotated() const { return memory_.get() + size_; }

  const A* wide_x(int64_t row) const {
    const T* x = call_.x + cpu::offset_of(call_.x_rows, row);
    return cpu::widened(x, memory_.get() + 2 * size_, size_);
  }

  const NormRope<T, Angle>& call_;
  const int64_t size_;
  const cpu::Scratch<A> memory_;
  cpu::Rotator<T, Angle> rotator_;
};

Status forward_cpu(const Call& call) {
  return dispatch_rotation(call, kForward, [&](auto tag, auto angle) -> Status {
    using Norm = NormRope<typename decltype(tag)::type, typename decltype(angle)::type>;
    const Norm norm(call, /*is_backward=*/false);
    const int64_t nanoseconds_per_row = 40 + norm.rope.rows.size / 2;
    call.context.parallel_for(norm.rope.count(), nanoseconds_per_row, [&](int64_t begin, int64_t end) {
      NormRopeRows rows(norm);
      cpu::run_widest([&] {
        for (int64_t row = begin; row < end; ++row) rows.forward(row);
      });
    });
    return {};
  });
}

Status backward_cpu(const Call& call) {
  return dispatch_rotation(call, kBackward, [&](auto tag, auto angle) -> Status {
    using Norm = NormRope<typename decltype(tag)::type, typename decltype(angle)::type>;
    const Norm norm(call, /*is_backward=*/true);
    const int64_t count = norm.rope.count(), size = norm.rope.rows.size;
    const RowChunks chunks = row_chunks_of(count);
    call.context.parallel_for(chunks.count, 1 + chunks.rows * (60 + size), [&](int64_t begin, int64_t end) {
      NormRopeRows rows(norm);
      cpu::run_widest([&] {
        for (int64_t chunk = begin; chunk < end; ++chunk) {
          auto* const dweight = norm.need_dweight ? norm.partials + chunk * size : nullptr;
          if (dweight) std::fill_n(dweight, size, 0);
          const int64_t first = chunk * chunks.rows, last = std::min(first + chunks.rows, count);
          for (int64_t row = first; row < last; ++row) rows.backward(row, dweight);
        }
      });
    });
    return norm.need_dweight ? cpu::sum_partials(call.context, norm.partials, chunks.count, size, norm.dweight)
                             : Status();
  });
}

size_t backward_workspace(const Call& call) {
  constexpr const Signature& kOp = kRmsNormRopeBackward;
  if (!call.inputs[input_of(kOp, "weight")] || !call.attributes[attribute_of<bool>(kOp, "need_dweight")]) return 0;
  const View &x = *call.inputs[kBackward.x], &cos = *call.inputs[kBackward.cos];
  const int64_t size = x.sizes[x.rank - 1], rows = size ? x.numel() / size : 0;
  const RowChunks chunks =
      call.context.cuda ? NormRopePlan(rows, size, cos.sizes[cos.rank - 1], x.dtype).chunks : row_chunks_of(rows);
  return chunks.count * size * size_of(compute_dtype(x.dtype));
}

}  // namespace

Operator rms_norm_rope() {
  return with_backward(kRmsNormRope, kRmsNormRopeBackward,
                       {.rule = forward_rule, .cpu = forward_cpu, .cuda = rms_norm_rope_cuda});
}

Operator rms_norm_rope_backward() {
  return {kRmsNormRopeBackward,
          {.rule = backward_rule,
           .workspace = backward_workspace,
           .cpu = backward_cpu,
           .cuda = rms_norm_rope_backward_cuda}};
}

}  // namespace fusedops
