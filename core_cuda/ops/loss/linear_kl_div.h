// linear_kl_div: the divergence of p = softmax(z) from q = softmax(target z), for the logits z = (x W^T + bias) /
// temperature of two heads with the same classes. With m = beta * q + (1 - beta) * p, the divergence of a row and its
// gradient by z are
//   beta = 0:  KL(q || p),                                     p - q
//   beta = 1:  KL(p || q),                                     p * (log p - log q - KL(p || q))
//   between:   beta * KL(q || m) + (1 - beta) * KL(p || m),    (1 - beta) * p * (log p - log m - KL(p || m))
// where KL(a || b) = sum(a * (log a - log b)), and terms with a = 0 are 0. Source: Agarwal et al., "On-policy
// distillation of language models", 2024.
//
// The logits of both heads exist a block of rows at a time. The gradients are kept by the forward, or computed by the
// backward from new logits, as in linear_cross_entropy.
#pragma once

#include "ops/loss/linear_cross_entropy_loops.h"

namespace fusedops {

inline constexpr AttributeList kKlDivOptions{{.name = "beta", .value = "0.0", .bounds = kUnitInterval},
                                             kTemperature,
                                             kIgnoreIndex,
                                             kReductionOfRows,
                                             kTransposeWeightAttribute};

// Both weights are [classes, in], or [in, classes] if transpose_weight is false. Rows whose label is ignore_index have
// no divergence; other labels are not read as classes.
inline constexpr Signature kLinearKlDiv{
    .name = "linear_kl_div",
    .inputs = {matrix_of_rows("x"), weight_matrix("weight"), matrix_of_rows("target_x"), weight_matrix("target_weight"),
               optional_parameter("bias"), optional_parameter("target_bias"), optional_tensor("labels")},
    .outputs = {{"loss", "compute(x)"},
                {"count", "compute(x)", /*saved=*/true},
                {"unit_dx", "x", /*saved=*/true},
                {"unit_dweight", "weight", /*saved=*/true},
                {"unit_dbias", "bias", /*saved=*/true}},
    .attributes = with_flags(kKlDivOptions, {"keep_dx", "keep_dweight", "keep_dbias"}, "false"),
    .axes = {{"...K, KV^transpose_weight, ...J, JV^transpose_weight, V, V, ... -> ..., 1/..., ...K, "
              "KV^transpose_weight/..., V/...",
              "reduction=none keep_dx=false keep_dweight=false keep_dbias=false"},
             {"...K, KV^transpose_weight, ...J, JV^transpose_weight, V, V, ... -> 1/..., 1/..., ...K, "
              "KV^transpose_weight/..., V/...",
              "reduction=sum keep_dx=false keep_dweight=false keep_dbias=false"},
             {"...K, KV^transpose_weight, ...J, JV^transpose_weight, V, V, ... -> 1/...:count, 1/..., ...K, "
              "KV^transpose_weight/..., V/...",
              "reduction=mean keep_dx=false keep_dweight=false keep_dbias=false"},
             {"...K, KV^transpose_weight, ...J, JV^transpose_weight, V, V, ... -> 1/..., 1/..., ...K, "
              "KV^transpose_weight/..., V/...",
              "reduction=sum"},
             {"...K, KV^transpose_weight, ...J, JV^transpose_weight, V, V, ... -> 1/...:count, 1/..., ...K:count, "
              "KV^transpose_weight/...:count, V/...:count",
              "reduction=mean"}},
    .autocast = true,
};

Operator linear_kl_div();
FUSEDOPS_CUDA_KERNEL Status linear_kl_div_cuda(const Call& call);

// Gradients that are not needed are empty.
inline constexpr Signature kLinearKlDivBackward{
    .name = "linear_kl_div_backward",
    .inputs = InputList{{"dloss"}}.with(kLinearKlDiv.inputs).with({{"count"}}).with(kUnitGradients),
    .outputs = kScaledGradients,
    .attributes = with_needs(kKlDivOptions, {"need_dx", "need_dweight", "need_dbias"}),
    .axes = {{"..., ...K, KV^transpose_weight, ...J, JV^transpose_weight, V, V, ..., 1/..., ...K, "
              "KV^transpose_weight, V -> ...K, KV^transpose_weight/..., V/...",
              "reduction=none"},
             {"1, ...K, KV^transpose_weight, ...J, JV^transpose_weight, V, V, ..., 1/..., ...K, KV^transpose_weight, V "
              "-> ...K, KV^transpose_weight/...|unit_dweight, V/...|unit_dbias",
              "reduction=sum"},
             {"1, ...K, KV^transpose_weight, ...J, JV^transpose_weight, V, V, ..., 1, ...K, KV^transpose_weight, V "
              "-> ...K, KV^transpose_weight/...|unit_dweight, V/...|unit_dbias",
              "reduction=mean"}},
};

Operator linear_kl_div_backward();
FUSEDOPS_CUDA_KERNEL Status linear_kl_div_backward_cuda(const Call& call);

inline constexpr GradientPlaces kKlDivAt = kept_gradients(kLinearKlDiv);
inline constexpr GradientPlaces kKlDivBackwardAt = needed_gradients(kLinearKlDivBackward);
inline constexpr LinearArguments kTargetAt{kLinearKlDiv, "target_x", "target_weight", "target_bias"};
inline constexpr LinearArguments kTargetBackwardAt{kLinearKlDivBackward, "target_x", "target_weight", "target_bias"};

// The divergences of rows, and their gradients.
template <class A>
struct Divergences {
  Divergences(const Call& call, const LossArguments& at, AttributeIndex<double> beta_at, int64_t rows)
      : rows(rows),
        ignored(call.attributes[at.ignore_index]),
        reduction(reduction_of(call, at)),
        beta(static_cast<A>(call.attributes[beta_at])),
        of_target(beta == 0   ? A(1)
                  : beta == 1 ? A(0)
                              : beta),
        of_model(beta == 0   ? A(0)
                 : beta == 1 ? A(1)
                             : 1 - beta) {
    const View* const given = call.inputs[at.labels];
    has_labels = given;
    if (given) labels = Labels(*given, ignored);
  }

  FUSEDOPS_HD bool counts(int64_t row) const { return !has_labels || labels[row] != ignored; }

  // The probabilities of a class, and their logarithms relative to that of m.
  struct Class {
    A p, q, log_p, log_q;
  };
  FUSEDOPS_HD Class of_class(A log_p, A log_q) const {
    const A p = exp2_(log_p * A(kLog2E)), q = exp2_(log_q * A(kLog2E));
    const A m = beta * q + (1 - beta) * p;
    // m may be 0 where p or q is the least number; the larger logarithm is near that of m then.
    const A log_m = beta == 0 ? log_p : beta == 1 ? log_q : m == 0 ? std::max(log_p, log_q) : std::log(m);
    return {p, q, log_p - log_m, log_q - log_m};
  }
  static FUSEDOPS_HD A term(A probability, A log) { return probability == 0 ? A(0) : probability * log; }

  // From KL(q || m) and KL(p || m).
  FUSEDOPS_HD A divergence(A target, A model) const { return of_target * target + of_model * model; }
  // The gradient by a logit of the row.
  FUSEDOPS_HD A derivative(const Class& c, A model) const {
    return beta == 0 ? c.p - c.q : of_model * term(c.p, c.log_p - model);
  }

  FUSEDOPS_HD A upstream(int64_t row) const { return upstream_of_row(reduction, dloss, count, row); }

  int64_t rows;
  Labels labels{};
  bool has_labels;
  int64_t ignored;
  Reduction reduction;
  A beta;
  A of_target, of_model;  // factors of KL(q || m) and KL(p || m)
  A* losses = nullptr;    // [rows]; null in the backward
  const A* dloss = nullptr;
  const A* count = nullptr;
};

// A row's logarithm of a probability, from the logit.
template <class A>
struct LogSoftmax {
  A max, log_sum;

  FUSEDOPS_HD A operator()(A logit) const { return logit - max - log_sum; }
};

// The same rows and columns of the logits of both heads, and their dz; null: not computed.
template <class T>
struct LogitPair {
  LogitBlock<T> model, target;
  T* dz;
};

// Rows of both heads: the columns of at most two blocks.
template <class T>
struct LogitPairs {
  LogitPair<T> blocks[2];
  int count = 0;
};

// A call of the forward or the backward. Without memory it only computes the size.
struct KlDivCall {
  KlDivCall(const Call& call, const GradientPlaces& at, const LinearArguments& target_at, void* workspace)
      : target(call, target_at, LinearLogits::by_rows),
        memory(workspace),
        target_sums(memory.take(target.block_bytes())),
        losses(memory.take(target.rows * size_of(compute_dtype(target.dtype)))),
        products(call, at, LinearLogits::by_rows, memory.rest()) {}

  size_t workspace() const { return memory.taken() + products.workspace(); }

  LinearLogits target;
  WorkspaceAllocator memory;
  void *target_sums, *losses;
  LossProducts products;
};

// Stores the divergences of all rows if `rows` has memory for them, and the gradients that `products` computes.
template <class T, class Device>
Status divergences_and_gradients(const KlDivCall& kl, const Divergences<compute_t<T>>& rows, const Context& context) {
  const LossProducts& products = kl.products;
  const LinearLogits& target = kl.target;
  const auto store_rows = [&](int64_t row, int64_t count, auto&& for_each_block) -> Status {
    LogitPairs<T> pairs;
    FUSEDOPS_TRY(for_each_block([&](const GradientBlock& block) {
      auto* const sums = static_cast<compute_t<T>*>(kl.target_sums) + count * block.column;
      const LogitPair<T> pair = {products.logits<T>(block, row, count),
                                 target.block<T>(row, count, block.column, block.columns, sums),
                                 products.any() ? products.dz<T>(block, row) : nullptr};
      pairs.blocks[pairs.count++] = pair;
      FUSEDOPS_TRY(Device::multiply(products.linear.product(pair.model), nullptr, context));
      return Device::multiply(target.product(pair.target), nullptr, context);
    }));
    return Device::store_rows(rows, pairs, row, count, context);
  };
  return gradients_by_rows<T, Device>(products, context, store_rows);
}

template <class T, class Device>
Status linear_kl_div_forward(const Call& call) {
  using A = compute_t<T>;
  const KlDivCall kl(call, kKlDivAt, kTargetAt, call.workspace);
  Divergences<A> rows(call, kLinearKlDiv, attribute_of<double>(kLinearKlDiv, "beta"), kl.target.rows);
  A *const loss = call.output<A>(output_of(kLinearKlDiv, "loss")), *const count =
                                                                       call.output<A>(output_of(kLinearKlDiv, "count"));
  rows.losses = rows.reduction == Reduction::none ? loss : static_cast<A*>(kl.losses);
  rows.count = count;
  FUSEDOPS_TRY(Device::count(rows, count, call.context));
  FUSEDOPS_TRY((divergences_and_gradients<T, Device>(kl, rows, call.context)));
  return rows.reduction == Reduction::none ? Status() : Device::total(rows, loss, call.context);
}

template <class T, class Device>
Status linear_kl_div_gradient(const Call& call) {
  using A = compute_t<T>;
  const KlDivCall kl(call, kKlDivBackwardAt, kTargetBackwardAt, call.workspace);
  const bool is_unit = has_unit_gradients<kLinearKlDivBackward>(call.attributes, kl.target.dtype);
  if (kl.products.any()) {
    Divergences<A> rows(call, kLinearKlDivBackward, attribute_of<double>(kLinearKlDivBackward, "beta"), kl.target.rows);
    rows.count = call.input<A>(input_of(kLinearKlDivBackward, "count"));
    if (!is_unit) rows.dloss = call.input<A>(kKlDivBackwardAt.dloss);
    FUSEDOPS_TRY((divergences_and_gradients<T, Device>(kl, rows, call.context)));
  }
  return scale_gradients(call, kKlDivBackwardAt, is_unit);
}

}  // namespace fusedops
