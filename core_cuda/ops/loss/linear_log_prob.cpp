#include "ops/loss/linear_log_prob.h"

#include "ops/loss/losses_cpu.h"

namespace fusedops {
namespace {

constexpr LossInputs kLossAt = kLinearLogProbBackward;

Status forward_rule(Rule& rule) {
  constexpr LossArguments kArguments = kLinearLogProb;
  Shape logits;
  FUSEDOPS_TRY(linear_logits_rule(rule, kLogProbAt, &logits));
  FUSEDOPS_TRY(check_loss_arguments(rule, kArguments, kLogProbAt.x, logits));
  for (const int output :
       {output_of(kLinearLogProb, "log_prob"), output_of(kLinearLogProb, "lse"), output_of(kLinearLogProb, "entropy")})
    rule.outputs[output] = loss_row_shape(rule, kArguments, kLogProbAt.x);
  rule.outputs[output_of(kLinearLogProb, "statistics")] = lse_shape(rule, kLogProbAt.x);
  return {};
}

Status backward_rule(Rule& rule) {
  constexpr int kX = kLogProbBackwardAt.x;
  Shape logits;
  FUSEDOPS_TRY(linear_logits_rule(rule, kLogProbBackwardAt, &logits));
  FUSEDOPS_TRY(check_loss_arguments(rule, kLossAt, kX, logits));
  FUSEDOPS_TRY(check_lse(rule, kLossAt.lse, kX));
  for (const int input : {kLossAt.dlog_prob, kLossAt.dlse, kLossAt.dentropy, kLossAt.entropy})
    if (rule.inputs[input].present) FUSEDOPS_TRY(rule.per_row(input, kX));
  return gradients_rule(rule, kLogProbBackwardAt);
}

size_t forward_workspace(const Call& call) {
  return sum_logits_workspace(LinearLogits(call, kLogProbAt, LinearLogits::by_columns));
}

size_t backward_workspace(const Call& call) {
  return LossProducts(call, kLogProbBackwardAt, LinearLogits::by_columns, nullptr).workspace();
}

template <class T>
Status forward_rows(const Call& call) {
  using A = compute_t<T>;
  const LinearLogits linear(call, kLogProbAt, LinearLogits::by_columns);
  const LogProbs<A> results(call, linear.rows, linear.columns);
  const LossMemory<A> memory(linear, call.workspace);
  FUSEDOPS_TRY(cpu::check_labels(results, public_name(call.op)));
  FUSEDOPS_TRY(sum_logits_cpu<T>(linear, results, memory, call.context));
  call.context.parallel_for(linear.rows, 50, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      results.finish(row, results.combined(memory.tile_stats + row * memory.tiles, memory.tiles), memory.label_logits);
  });
  return {};
}

Status forward_cpu(const Call& call) {
  return dispatch(call.inputs[kLogProbAt.x]->dtype,
                  [&](auto tag) { return forward_rows<typename decltype(tag)::type>(call); });
}

template <class T>
Status backward_rows(const Call& call) {
  const LossProducts products(call, kLogProbBackwardAt, LinearLogits::by_columns, call.workspace);
  const LossGradient<compute_t<T>> gradient(call, kLossAt, products.linear.rows, products.linear.columns);
  FUSEDOPS_TRY(cpu::check_labels(gradient, public_name(call.op)));
  return differentiate_logits_cpu<T>(products, gradient, call.context);
}

Status backward_cpu(const Call& call) {
  return dispatch(call.inputs[kLogProbBackwardAt.x]->dtype,
                  [&](auto tag) { return backward_rows<typename decltype(tag)::type>(call); });
}

}  // namespace

Operator linear_log_prob() {
  return with_backward(
      kLinearLogProb, kLinearLogProbBackward,
      {.rule = forward_rule, .workspace = forward_workspace, .cpu = forward_cpu, .cuda = linear_log_prob_cuda});
}

Operator linear_log_prob_backward() {
  return {kLinearLogProbBackward,
          {.rule = backward_rule,
           .workspace = backward_workspace,
           .cpu = backward_cpu,
           .cuda = linear_log_prob_backward_cuda}};
}

}  // namespace fusedops
