// Shared parts of the CPU kernels of the losses.
#pragma once

#include <limits>
#include <string>

#include "core/cpu/exp_sum.h"
#include "core/cpu/sum.h"
#include "core/declaration/numbers.h"
#include "ops/loss/losses.h"
#include "ops/products/matmul.h"

namespace fusedops::cpu {

// The ignore_index of callers that ignore no label, such as Keras losses without ignore_class.
inline constexpr int64_t kIgnoresNone = std::numeric_limits<int64_t>::min();

// The sum of the label weights of rows that are not ignored, without class_weight their number. An error names the
// first label that is no class, or the first negative weight.
template <class A>
Status count_rows(const LossRows<A>& call, const char* op, double* count) {
  for (int64_t i = 0; call.class_weight && i < call.classes; ++i)
    if (call.class_weight[i] < 0)
      return Status::error("fusedops.", op, ": class_weight must not be negative; got ", spelled(call.class_weight[i]),
                           " for class ", std::to_string(i));
  *count = 0;
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t label = call.labels[row];
    if (call.is_ignored(label)) continue;
    if (!call.is_class(label)) {
      const int64_t ignored = call.labels.ignored;
      const std::string or_ignored = ignored == kIgnoresNone ? "" : " or ignore_index, " + std::to_string(ignored);
      return Status::error("fusedops.", op, ": labels must be in [0, ", std::to_string(call.classes), ")", or_ignored,
                           "; got ", std::to_string(label), " in row ", std::to_string(row));
    }
    *count += call.counted(label);
  }
  return {};
}

// RowStats of a row, or of a tile of it, with `size` logits. `first_class` is the class of the first one.
template <class T, class A>
RowStats<A> row_stats(const LossRows<A>& call, const T* x, int64_t first_class, int64_t size) {
  const auto block = [=](int64_t start, int64_t n, A* buffer) { return widened(x + start, buffer, n); };
  const auto [max, sum] = exp_sum<A>(size, A(kLog2E), nullptr, block);
  RowStats<A> sums{max, sum / kExpScale<A>, 0, 0};
  // Without a finite logit, terms are relative to 0: -inf minus -inf is NaN, and other tiles may have finite logits.
  const A base = max == -std::numeric_limits<A>::infinity() ? A(0) : max;
  if (base != max) {
    sums.exponentials = 0;
    for (int64_t i = 0; i < size; ++i) sums.exponentials += std::exp(to_compute(x[i]));
  }
  if (call.smoothing == 0 && !call.has_entropy) return sums;
  A buffer[kBlock];
  for (int64_t start = 0; start < size; start += kBlock) {
    const int64_t n = std::min(kBlock, size - start), first = first_class + start;
    const A *wide = block(start, n, buffer), share = call.share();
    if (call.has_shares()) {
      sums.moment += interleaved_sum<A>(n, [=](int64_t i) { return (wide[i] - base) * call.share(first + i); });
      sums.share += interleaved_sum<A>(n, [=](int64_t i) { return call.share(first + i); });
    } else if (call.smoothing != 0) {
      sums.moment += interleaved_sum<A>(n, [=](int64_t i) { return (wide[i] - base) * share; });
    }
    if (call.has_entropy)
      sums.moment += interleaved_sum<A>(n, [=](int64_t i) { return LossRows<A>::entropy_term(wide[i] - base); });
  }
  if (!call.has_shares()) sums.share = static_cast<A>(size) / static_cast<A>(call.classes);
  return sums;
}

template <class A>
Status check_labels(const LossRows<A>& call, const char* op) {
  double count;
  return count_rows(call, op, &count);
}

// Stores lse and the losses of `count` rows, from sums_of(row) and label_logit(row, label).
template <class A, class Sums, class LabelLogit>
void finish_rows(const Losses<A>& call, int64_t first, int64_t count, const Context& context, int64_t cost, A* losses,
                 Sums&& sums_of, LabelLogit&& label_logit) {
  context.parallel_for(count, cost, [&](int64_t begin, int64_t end) {
    for (int64_t row = first + begin; row < first + end; ++row)
      losses[row] = call.finish(row, sums_of(row), label_logit);
  });
}

// Stores the sum or the mean of the losses of all rows.
template <class A>
void finish_total(const Losses<A>& call, const A* losses) {
  const A sum = pairwise_sum(losses, call.rows);
  *call.loss = call.reduction == Reduction::sum ? sum : sum / *call.count;
}

// Stores the sum of the label weights.
template <class A>
Status store_count(const Losses<A>& call, const char* op) {
  double count;
  FUSEDOPS_TRY(count_rows(call, op, &count));
  *call.count = static_cast<A>(count);
  return {};
}

// Stores lse, count, and the losses or their sum or mean. `losses`: memory for one value per row.
template <class A, class Sums, class LabelLogit>
Status finish_losses(const Losses<A>& call, const char* op, const Context& context, int64_t cost, A* losses,
                     Sums&& sums_of, LabelLogit&& label_logit) {
  FUSEDOPS_TRY(store_count(call, op));
  const bool is_per_row = call.reduction == Reduction::none;
  finish_rows(call, 0, call.rows, context, cost, is_per_row ? call.loss : losses, sums_of, label_logit);
  if (!is_per_row) finish_total(call, losses);
  return {};
}

// c of a product from `count` sums [m, n] in the compute type, added in order and rounded.
inline Status finish_sums(const Matmul& product, const void* sums, int64_t count, const Context& context) {
  return dispatch(product.dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    const auto* const from = static_cast<const compute_t<T>*>(sums);
    const int64_t size = product.m * product.n;
    context.parallel_for(size, count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        compute_t<T> sum = from[i];
        for (int64_t j = 1; j < count; ++j) sum += from[j * size + i];
        static_cast<T*>(product.c)[i] = from_compute<T>(sum);
      }
    });
    return {};
  });
}

}  // namespace fusedops::cpu
