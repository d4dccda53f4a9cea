#include "ops/loss/cross_entropy.h"

#include "core/cpu/elementwise.h"
#include "ops/loss/losses_cpu.h"

namespace fusedops {
namespace {

constexpr int kLogits = input_of(kCrossEntropy, "logits"), kBackwardLogits = input_of(kCrossEntropyBackward, "logits");
constexpr LossOutputs kAt = kCrossEntropy;
constexpr LossInputs kBackwardAt = kCrossEntropyBackward;

Status forward_rule(Rule& rule) { return loss_rule(rule, kAt, kLogits, rule.inputs[kLogits]); }

Status backward_rule(Rule& rule) {
  const Shape& logits = rule.inputs[kBackwardLogits];
  FUSEDOPS_TRY(loss_backward_rule(rule, kBackwardAt, kBackwardLogits, logits));
  rule.outputs[output_of(kCrossEntropyBackward, "dlogits")] = logits;
  return {};
}

// GPU: RowStats of every tile, then loss and row count of every block. CPU: the loss of every row, which is less.
size_t forward_workspace(const Call& call) {
  const View& logits = *call.inputs[kLogits];
  const Rows shape = as_rows(logits);
  const LossTiles tile_stats(shape.count, shape.size, logits.dtype);
  return (4 * shape.count * tile_stats.tiles + 2 * tile_stats.blocks) * size_of(compute_dtype(logits.dtype));
}

template <class T>
Status forward_rows(const Call& call) {
  using A = compute_t<T>;
  const auto logits = logits_of<T>(*call.inputs[kLogits]);
  const Losses<A> losses(call, kAt, logits.rows, logits.columns);
  return cpu::finish_losses(
      losses, public_name(call.op), call.context, 50 + logits.columns / 2, static_cast<A*>(call.workspace),
      [&](int64_t row) { return cpu::row_stats(losses, logits.row(row), losses.first_class, logits.columns); },
      [&](int64_t row, int64_t label) { return to_compute(logits.row(row)[losses.column_of(label)]); });
}

Status cross_entropy_cpu(const Call& call) {
  return dispatch(call.inputs[kLogits]->dtype,
                  [&](auto tag) { return forward_rows<typename decltype(tag)::type>(call); });
}

template <class T>
Status backward_rows(const Call& call) {
  using A = compute_t<T>;
  const auto logits = logits_of<T>(*call.inputs[kBackwardLogits]);
  const LossGradient<A> gradient(call, kBackwardAt, logits.rows, logits.columns);
  T* const dlogits = call.output<T>(output_of(kCrossEntropyBackward, "dlogits"));
  FUSEDOPS_TRY(cpu::check_labels(gradient, public_name(call.op)));
  const bool streamed = cpu::is_streamed(logits.rows * logits.columns * sizeof(T));
  call.context.parallel_for(logits.rows, 50 + logits.columns / 2, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = logits.row(row);
      T* dx = dlogits + row * logits.columns;
      const int64_t label = gradient.labels[row];
      if (gradient.is_ignored(label)) {
        std::fill_n(dx, logits.columns, T{});
        continue;
      }
      const auto derivative = gradient.derivative(row);
      if (gradient.has_shares())
        for (int64_t i = 0; i < logits.columns; ++i)
          dx[i] = from_compute<T>(derivative(to_compute(x[i]), gradient.target(gradient.first_class + i)));
      else
        cpu::apply([=, uniform = gradient.uniform](A logit) { return derivative(logit, uniform); }, streamed,
                   logits.columns, dx, x);
      if (!gradient.has_column_of(label)) continue;
      const int64_t at = gradient.column_of(label);
      dx[at] = from_compute<T>(derivative(to_compute(x[at]), gradient.target_of_label(row, label)));
    }
  });
  return {};
}

Status cross_entropy_backward_cpu(const Call& call) {
  return dispatch(call.inputs[kBackwardLogits]->dtype,
                  [&](auto tag) { return backward_rows<typename decltype(tag)::type>(call); });
}

}  // namespace

Operator cross_entropy() {
  return with_backward(
      kCrossEntropy, kCrossEntropyBackward,
      {.rule = forward_rule, .workspace = forward_workspace, .cpu = cross_entropy_cpu, .cuda = cross_entropy_cuda});
}

Operator cross_entropy_backward() {
  return {kCrossEntropyBackward,
          {.rule = backward_rule, .cpu = cross_entropy_backward_cpu, .cuda = cross_entropy_backward_cuda}};
}

}  // namespace fusedops
