// linear_log_prob: the log-probability of the label, the log-sum-exp and the entropy of softmax(z) for the logits
// z = softcap(x W^T + bias) / temperature, by the loops of linear_cross_entropy. The formulas are in losses.h.
#pragma once

#include "ops/loss/linear_cross_entropy.h"

namespace fusedops {

inline constexpr AttributeList kLogProbOptions{
    kTemperature, kSoftcap, kIgnoreIndex, kTransposeWeightAttribute, {"need_entropy", Type::boolean, "false"},
    kFirstClass,  kClasses};

// The entropy is 0, without a gradient, if need_entropy is false. `statistics` are the numbers of lse in losses.h.
inline constexpr Signature kLinearLogProb{
    .name = "linear_log_prob",
    .inputs = {matrix_of_rows("x"), weight_matrix("weight"), {"labels"}, optional_parameter("bias")},
    .outputs = {{"log_prob", "compute(x)"},
                {"lse", "compute(x)"},
                {"entropy", "compute(x)"},
                {"statistics", "compute(x)", /*saved=*/true}},
    .attributes = kLogProbOptions,
    .axes = {{"...K, Kv^transpose_weight, ..., v -> ..., ..., ..., ...L; v@first_class/classes"}},
    .autocast = true,
};

Operator linear_log_prob();
FUSEDOPS_CUDA_KERNEL Status linear_log_prob_cuda(const Call& call);

// Gradients that are not needed are empty.
inline constexpr Signature kLinearLogProbBackward{
    .name = "linear_log_prob_backward",
    .inputs = InputList{{"dlog_prob", Kind::optional}}
                  .with(kLinearLogProb.inputs)
                  .with({{"entropy"}, {"statistics"}, {"dlse", Kind::optional}, {"dentropy", Kind::optional}}),
    .outputs = {{"dx", "x"}, {"dweight", "weight"}, {"dbias", "bias"}},
    .attributes = with_needs(kLogProbOptions, {"need_dx", "need_dweight", "need_dbias"}),
    .axes = {{"..., ...K, Kv^transpose_weight, ..., v, ..., ...L, ..., ... -> ...K/v, Kv^transpose_weight/..., v/...; "
              "v@first_class/classes"}},
};

Operator linear_log_prob_backward();
FUSEDOPS_CUDA_KERNEL Status linear_log_prob_backward_cuda(const Call& call);

inline constexpr LinearArguments kLogProbAt = kLinearLogProb;
inline constexpr GradientPlaces kLogProbBackwardAt = needed_gradients(kLinearLogProbBackward);

// The results of a row.
template <class A>
struct LogProbs : LossRows<A> {
  LogProbs(const Call& call, int64_t rows, int64_t columns)
      : LossRows<A>(call, kLinearLogProb, rows, columns),
        log_prob(call.output<A>(output_of(kLinearLogProb, "log_prob"))),
        lse(call.output<A>(output_of(kLinearLogProb, "lse"))),
        entropy(call.output<A>(output_of(kLinearLogProb, "entropy"))),
        statistics(call.output<Lse<A>>(output_of(kLinearLogProb, "statistics"))) {}

  // log_prob is NaN if the label is no class, and 0 if its logit is in another shard of the classes.
  FUSEDOPS_HD void finish(int64_t row, const RowStats<A>& sums, const A* label_logits) const {
    const int64_t label = this->labels[row];
    const bool counts = !this->is_ignored(label);
    const A log_sum = std::log(sums.exponentials);
    lse[row] = sums.max + log_sum;
    statistics[row] = {sums.max, log_sum, 0};
    log_prob[row] = 0;
    entropy[row] = counts && this->has_entropy ? log_sum - sums.moment / sums.exponentials : A(0);
    if (!counts) return;
    if (!this->is_class(label)) log_prob[row] = std::numeric_limits<A>::quiet_NaN();
    if (this->is_class(label) && this->has_column_of(label)) log_prob[row] = label_logits[row] - sums.max - log_sum;
  }

  A *log_prob, *lse, *entropy;
  Lse<A>* statistics;
};

}  // namespace fusedops
