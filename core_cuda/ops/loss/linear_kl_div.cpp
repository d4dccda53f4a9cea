#include "ops/loss/linear_kl_div.h"

#include "core/cpu/widest.h"
#include "ops/loss/losses_cpu.h"

namespace fusedops {
namespace {

// Checks the target head against the other one.
Status check_target(Rule& rule, const LinearArguments& at, const LinearArguments& model) {
  FUSEDOPS_TRY(rule.same_dtype(at.x, model.x));
  Shape logits;
  FUSEDOPS_TRY(linear_logits_rule(rule, at, &logits));
  const Shape &x = rule.inputs[model.x], &target = rule.inputs[at.x];
  bool equal = !x.ranked || !target.ranked || x.rank == target.rank;
  for (int i = 0; equal && x.ranked && target.ranked && i < x.rank - 1; ++i) {
    Dim size = x.dims[i];
    equal = rule.same(size, target.dims[i]);
  }
  if (!equal)
    return rule.must(at.x, "have rows of shape " + rule.show(rule.row_shape(model.x, x.dtype)) + ", as x has",
                     rule.show(rule.row_shape(at.x, x.dtype)));
  const Shape &weight = rule.inputs[model.weight], &other = rule.inputs[at.weight];
  if (!weight.ranked || !other.ranked) return {};
  const int dim = rule.attributes[at.transpose_weight] ? 0 : 1;
  Dim classes = weight.dims[dim];
  if (rule.same(classes, other.dims[dim])) return {};
  return rule.must(at.weight, "have " + rule.show(classes) + " classes, as weight has", rule.show(other.dims[dim]));
}

Status forward_rule(Rule& rule) {
  Shape logits;
  FUSEDOPS_TRY(linear_logits_rule(rule, kKlDivAt, &logits));
  FUSEDOPS_TRY(check_target(rule, kTargetAt, kKlDivAt));
  FUSEDOPS_TRY(loss_rule(rule, kLinearKlDiv, kKlDivAt.x, logits));
  return gradients_rule(rule, kKlDivAt,
                        has_unit_gradients<kLinearKlDiv>(rule.attributes, rule.inputs[kKlDivAt.x].dtype));
}

Status backward_rule(Rule& rule) {
  Shape logits;
  FUSEDOPS_TRY(linear_logits_rule(rule, kKlDivBackwardAt, &logits));
  FUSEDOPS_TRY(check_target(rule, kTargetBackwardAt, kKlDivBackwardAt));
  FUSEDOPS_TRY(loss_backward_rule(rule, kLinearKlDivBackward, kKlDivBackwardAt.x, logits));
  return gradients_rule(rule, kKlDivBackwardAt);
}

size_t forward_workspace(const Call& call) { return KlDivCall(call, kKlDivAt, kTargetAt, nullptr).workspace(); }

size_t backward_workspace(const Call& call) {
  return kKlDivBackwardAt.any(call) ? KlDivCall(call, kKlDivBackwardAt, kTargetBackwardAt, nullptr).workspace() : 0;
}

struct Cpu {
  static Status multiply(const Matmul& product, void*, const Context& context) {
    return multiply_cpu(product, context);
  }

  static Status finish_sums(const Matmul& product, const void* sums, int64_t count, const Context& context) {
    return cpu::finish_sums(product, sums, count, context);
  }

  template <class A>
  static Status count(const Divergences<A>& rows, A* count, const Context&) {
    int64_t counted = 0;
    for (int64_t row = 0; row < rows.rows; ++row) counted += rows.counts(row);
    *count = static_cast<A>(counted);
    return {};
  }

  template <class A>
  static Status total(const Divergences<A>& rows, A* loss, const Context&) {
    const A sum = cpu::pairwise_sum(rows.losses, rows.rows);
    *loss = rows.reduction == Reduction::sum ? sum : sum / *rows.count;
    return {};
  }

  template <class A, class T>
  static Status store_rows(const Divergences<A>& rows, const LogitPairs<T>& pairs, int64_t first, int64_t count,
                           const Context& context) {
    int64_t columns = 0;
    for (int b = 0; b < pairs.count; ++b) columns += pairs.blocks[b].model.columns;
    context.parallel_for(count, 50 + 8 * columns, [&](int64_t begin, int64_t end) {
      cpu::run_widest([&] {
        for (int64_t i = begin; i < end; ++i) store_row(rows, pairs, first + i, i);
      });
    });
    return {};
  }

 private:
  // Calls body(logits, n, block) for pieces of a row of one head, where `logits` replace the sums.
  template <class A, class T, class Body>
  static void each(const LogitPairs<T>& pairs, LogitBlock<T> LogitPair<T>::* head, int64_t i, Body&& body) {
    for (int b = 0; b < pairs.count; ++b) {
      const LogitBlock<T>& block = pairs.blocks[b].*head;
      body(block, block.products + i * block.columns);
    }
  }

  template <class A, class T>
  static LogSoftmax<A> log_softmax(const LogitPairs<T>& pairs, LogitBlock<T> LogitPair<T>::* head, int64_t i) {
    A max = -std::numeric_limits<A>::infinity(), sum = 0;
    each<A>(pairs, head, i, [&](const LogitBlock<T>& block, A* z) {
      if (!block.is_plain())
#pragma GCC ivdep
        for (int64_t j = 0; j < block.columns; ++j) z[j] = block.logit(z[j], j).value;
      max = std::max(max, cpu::interleaved_max(z, block.columns));
    });
    const A base = max == -std::numeric_limits<A>::infinity() ? A(0) : max;  // -inf minus -inf is NaN
    each<A>(pairs, head, i, [&](const LogitBlock<T>& block, const A* z) {
      for (int64_t start = 0; start < block.columns; start += cpu::kBlock)
        sum += cpu::interleaved_sum<A>(std::min(cpu::kBlock, block.columns - start),
                                       [=](int64_t j) { return exp2_or_zero((z[start + j] - base) * A(kLog2E)); });
    });
    return {max, std::log(sum)};
  }

  template <class A, class T>
  static void store_row(const Divergences<A>& rows, const LogitPairs<T>& pairs, int64_t row, int64_t i) {
    // Calls body(start, n, z, target z, dz) for pieces of the row.
    const auto each_piece = [&](auto&& body) {
      for (int b = 0; b < pairs.count; ++b) {
        const auto& [model, target, dz] = pairs.blocks[b];
        for (int64_t start = 0; start < model.columns; start += cpu::kBlock) {
          const int64_t at = i * model.columns + start;
          body(std::min(cpu::kBlock, model.columns - start), model.products + at, target.products + at,
               dz ? dz + at : nullptr);
        }
      }
    };
    const bool needs_dz = pairs.blocks[0].dz;
    if (!rows.counts(row)) {
      if (rows.losses) rows.losses[row] = 0;
      if (needs_dz) each_piece([](int64_t n, const A*, const A*, T* dz) { std::fill_n(dz, n, T{}); });
      return;
    }
    const auto log_p = log_softmax<A>(pairs, &LogitPair<T>::model, i);
    const auto log_q = log_softmax<A>(pairs, &LogitPair<T>::target, i);
    cpu::TwoSums<A> sums;  // KL(q || m) and KL(p || m)
    each_piece([&](int64_t n, const A* z, const A* target_z, const T*) {
      sums = sums + cpu::interleaved_sums<A>(n, [=](int64_t j) {
               const auto c = rows.of_class(log_p(z[j]), log_q(target_z[j]));
               return cpu::TwoSums<A>{rows.term(c.q, c.log_q), rows.term(c.p, c.log_p)};
             });
    });
    if (rows.losses) rows.losses[row] = rows.divergence(sums.first, sums.second);
    if (!needs_dz) return;
    const A factor = rows.upstream(row) * pairs.blocks[0].model.factor;
    each_piece([&, model = sums.second](int64_t n, const A* z, const A* target_z, T* dz) {
      A buffer[cpu::kBlock];
#pragma GCC ivdep
      for (int64_t j = 0; j < n; ++j)
        buffer[j] = rows.derivative(rows.of_class(log_p(z[j]), log_q(target_z[j])), model) * factor;
      for (int64_t j = 0; j < n; ++j) dz[j] = from_compute<T>(buffer[j]);
    });
  }
};

Status forward_cpu(const Call& call) {
  return dispatch(call.inputs[kKlDivAt.x]->dtype,
                  [&](auto tag) { return linear_kl_div_forward<typename decltype(tag)::type, Cpu>(call); });
}

Status backward_cpu(const Call& call) {
  return dispatch(call.inputs[kKlDivBackwardAt.x]->dtype,
                  [&](auto tag) { return linear_kl_div_gradient<typename decltype(tag)::type, Cpu>(call); });
}

}  // namespace

Operator linear_kl_div() {
  return with_backward(
      kLinearKlDiv, kLinearKlDivBackward,
      {.rule = forward_rule, .workspace = forward_workspace, .cpu = forward_cpu, .cuda = linear_kl_div_cuda});
}

Operator linear_kl_div_backward() {
  return {kLinearKlDivBackward,
          {.rule = backward_rule,
           .workspace = backward_workspace,
           .cpu = backward_cpu,
           .cuda = linear_kl_div_backward_cuda}};
}

}  // namespace fusedops
