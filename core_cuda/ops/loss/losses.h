// Row-wise formulas of cross_entropy, linear_cross_entropy and linear_log_prob: labels, options, results from sums over
// the logits, and the gradient of a logit. With p = softmax(x) and lse = log(sum(exp(x))), every gradient by x is
//   dx[c] = p[c] * (a + b * log p[c]) - q[c]
// with a and b of the row. For the target distribution q, the row's loss and these are
//   q[c] = smoothing * w[c] / classes + (1 - smoothing) * w[label] * [c == label]
//   loss = sum(q * (lse - x)) + z_loss * lse^2,  a = sum(q) + 2 * z_loss * lse,  b = 0
// where w is class_weight, or 1. All terms are multiplied by the slope, the upstream gradient of the row's loss. The
// mean divides by the sum of w[label].
//
// For log_prob = x[label] - lse, lse and the entropy h = -sum(p * log p), with upstream gradients of these names,
//   q[c] = -dlog_prob * [c == label],  a = dlse - dlog_prob - dh * h,  b = -dh.
//
// lse is stored as two numbers: the largest logit, and the logarithm of the sum relative to it. Their sum would lose
// the digits of the logarithm if the logit is large. The third number that is stored with them is a.
//
// The logits may be a shard of the classes, from first_class on. Labels and class_weight are those of all classes. The
// sums over the classes, and so lse, the loss and a, are then over this shard alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/common/exp.h"
#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr std::string_view kReductions[] = {"mean", "sum", "none"};

// Options of losses. 0 classes: as many as there are columns of logits.
inline constexpr Attribute kIgnoreIndex{"ignore_index", Type::i64, "-100"},
    kLabelSmoothing{.name = "label_smoothing", .value = "0.0", .bounds = kUnitInterval},
    kReductionOfRows{"reduction", Type::string, "mean", kReductions},
    kZLoss{.name = "z_loss", .value = "0.0", .bounds = kFiniteNotNegative},
    kFirstClass{.name = "first_class", .type = Type::i64, .value = "0", .bounds = kNotNegative},
    kClasses{.name = "classes", .type = Type::i64, .value = "0", .bounds = kNotNegative};

enum class Reduction : uint8_t { none, sum, mean };

// Argument indices. Options that an operator does not have are 0.
struct LossArguments {
  int labels, class_weight;
  AttributeIndex<int64_t> ignore_index;
  AttributeIndex<double> label_smoothing, z_loss;
  AttributeIndex<std::string> reduction;
  AttributeIndex<bool> need_entropy;
  AttributeIndex<int64_t> first_class, classes;

  consteval LossArguments(const Signature& op)
      : labels(input_of(op, "labels")),
        class_weight(find_input(op, "class_weight")),
        ignore_index(attribute_of<int64_t>(op, "ignore_index")),
        label_smoothing(find_attribute<double>(op, "label_smoothing")),
        z_loss(find_attribute<double>(op, "z_loss")),
        reduction(find_attribute<std::string>(op, "reduction")),
        need_entropy(find_attribute<bool>(op, "need_entropy")),
        first_class(find_attribute<int64_t>(op, "first_class")),
        classes(find_attribute<int64_t>(op, "classes")) {}
};

// Output indices of a forward. lse is [..., 3], or absent; count is the sum of the label weights of the rows that are
// not ignored.
struct LossOutputs : LossArguments {
  int loss, lse, count;

  consteval LossOutputs(const Signature& op)
      : LossArguments(op), loss(output_of(op, "loss")), lse(find_output(op, "lse")), count(output_of(op, "count")) {}
};

// Input indices of a backward.
struct LossInputs : LossArguments {
  int dloss, dlog_prob, dlse, dentropy, lse, count, entropy;

  consteval LossInputs(const Signature& op)
      : LossArguments(op),
        dloss(find_input(op, "dloss")),
        dlog_prob(find_input(op, "dlog_prob")),
        dlse(find_input(op, "dlse")),
        dentropy(find_input(op, "dentropy")),
        lse(find_input(op, dloss == kAbsent ? "statistics" : "lse")),
        count(find_input(op, "count")),
        entropy(find_input(op, "entropy")) {}
};

// Checks labels, class_weight and the classes. The rows are those of the input `rows_of`.
Status check_loss_arguments(Rule& rule, const LossArguments& at, int rows_of, const Shape& logits);
// One number for each row. If the rank of the rows is unknown, the shape of the labels may be known.
Shape loss_row_shape(const Rule& rule, const LossArguments& at, int rows_of);
Shape lse_shape(const Rule& rule, int rows_of);
Status check_lse(Rule& rule, int lse, int rows_of);

// Checks the arguments, and infers the outputs of a forward.
Status loss_rule(Rule& rule, const LossOutputs& at, int rows_of, const Shape& logits);
Status loss_backward_rule(Rule& rule, const LossInputs& at, int rows_of, const Shape& logits);

// The label of each row.
struct Labels {
  const void* data;
  bool is_i64;
  int64_t ignored;

  Labels() = default;
  Labels(const View& view, int64_t ignored) : data(view.data), is_i64(view.dtype == DType::i64), ignored(ignored) {}

  Labels from(int64_t row) const {
    Labels part = *this;
    part.data = static_cast<const char*>(data) + row * (is_i64 ? sizeof(int64_t) : sizeof(int32_t));
    return part;
  }

  FUSEDOPS_HD int64_t operator[](int64_t row) const {
    return is_i64 ? static_cast<const int64_t*>(data)[row] : static_cast<const int32_t*>(data)[row];
  }
};

inline Reduction reduction_of(const Call& call, const LossArguments& at) {
  const std::string name = call.attributes.or_zero(at.reduction);
  return name == "mean" ? Reduction::mean : name == "sum" ? Reduction::sum : Reduction::none;
}

// Upstream gradient of a row's loss; a null dloss is 1.
template <class A>
FUSEDOPS_HD A upstream_of_row(Reduction reduction, const A* dloss, const A* count, int64_t row) {
  if (reduction == Reduction::none) return dloss[row];
  const A upstream = dloss ? *dloss : A(1);
  return reduction == Reduction::sum ? upstream : upstream / *count;
}

// Sums over a row, or over a tile of it.
template <class A>
struct RowStats {
  A max;
  A exponentials;  // sum of exp(x - max)
  // With smoothing: sum of share * (x - max) and of share, multiplied term by term to avoid overflow. For the entropy:
  // sum of exp(x - max) * (x - max), and 0.
  A moment, share;
};

template <class A>
struct Lse {
  A max, log_sum;
  A scale;  // a; 0 for a row that is ignored
};

// A: the type in which the loss is computed.
template <class A>
struct LossRows {
  LossRows() = default;
  LossRows(const Call& call, const LossArguments& at, int64_t rows, int64_t columns)
      : rows(rows),
        columns(columns),
        first_class(call.attributes.or_zero(at.first_class)),
        classes(columns),
        labels(*call.inputs[at.labels], call.attributes[at.ignore_index]),
        class_weight(call.input<float>(at.class_weight)),
        smoothing(static_cast<A>(call.attributes.or_zero(at.label_smoothing))),
        label_weight(static_cast<A>(1 - call.attributes.or_zero(at.label_smoothing))),
        z_loss(static_cast<A>(call.attributes.or_zero(at.z_loss))),
        has_entropy(call.attributes.or_zero(at.need_entropy)),
        reduction(reduction_of(call, at)) {
    if (const int64_t all = call.attributes.or_zero(at.classes)) classes = all;
  }

  FUSEDOPS_HD bool is_ignored(int64_t label) const { return label == labels.ignored; }
  FUSEDOPS_HD bool is_class(int64_t label) const { return label >= 0 && label < classes; }
  // The column of a label; it may be out of range.
  FUSEDOPS_HD int64_t column_of(int64_t label) const { return label - first_class; }
  FUSEDOPS_HD bool has_column_of(int64_t label) const { return column_of(label) >= 0 && column_of(label) < columns; }

  // NaN for a negative weight, which the CPU refuses and a GPU cannot.
  FUSEDOPS_HD A weight(int64_t label) const {
    if (!class_weight) return 1;
    const float w = class_weight[label];
    return w >= 0 ? A(w) : std::numeric_limits<A>::quiet_NaN();
  }

  // Weight of a row in the mean; 1 for a label that is no class, whose loss is NaN.
  FUSEDOPS_HD A counted(int64_t label) const {
    if (is_ignored(label)) return 0;
    return is_class(label) ? weight(label) : A(1);
  }

  // True if the smoothing differs between classes.
  FUSEDOPS_HD bool has_shares() const { return class_weight && smoothing != 0; }
  // w / classes of a class, and without w.
  FUSEDOPS_HD A share(int64_t of_class) const { return share() * weight(of_class); }
  FUSEDOPS_HD A share() const { return A(1) / static_cast<A>(classes); }

  // A term of the entropy's moment, for a logit relative to the maximum. It is 0 for -inf.
  static FUSEDOPS_HD A entropy_term(A below) { return exp2_or_zero(below * A(kLog2E)) * finite(below); }
  static FUSEDOPS_HD A finite(A below) { return below < -kFar ? -kFar : below; }

  // Combines the sums of tiles into those of a row or a larger tile.
  FUSEDOPS_HD RowStats<A> combined(const RowStats<A>* tiles, int64_t count) const {
    RowStats<A> row = {-std::numeric_limits<A>::infinity(), 0, 0, 0};
    for (int64_t i = 0; i < count; ++i) row.max = fmax(row.max, tiles[i].max);
    for (int64_t i = 0; i < count; ++i) {
      const A below = tiles[i].max == row.max ? A(0) : tiles[i].max - row.max;  // 0 for equal infinities
      const A factor = exp2_or_zero(below * A(kLog2E));
      row.exponentials += tiles[i].exponentials * factor;
      row.share += tiles[i].share;
      if (smoothing != 0) row.moment += tiles[i].moment + (tiles[i].share != 0 ? below * tiles[i].share : A(0));
      if (has_entropy) row.moment += factor * tiles[i].moment + factor * tiles[i].exponentials * finite(below);
    }
    return row;
  }

  static constexpr A kFar = 1000;  // exp(-kFar) is 0

  int64_t rows, columns;
  int64_t first_class, classes;  // class of the first column, number of all classes
  Labels labels;
  const float* class_weight;  // [classes]; null: 1
  A smoothing, label_weight;  // their sum is 1
  A z_loss;
  bool has_entropy;
  Reduction reduction;
};

template <class A>
struct Losses : LossRows<A> {
  Losses(const Call& call, const LossOutputs& at, int64_t rows, int64_t columns)
      : LossRows<A>(call, at, rows, columns),
        loss(call.output<A>(at.loss)),
        lse(call.output<Lse<A>>(at.lse)),
        count(call.output<A>(at.count)) {}

  // The rows from `row` on of a call with a reduction.
  Losses rows_from(int64_t row, int64_t count) const {
    Losses part = *this;
    part.rows = count;
    part.labels = this->labels.from(row);
    part.lse += row;
    return part;
  }

  // Stores lse, and returns the loss of the row: 0 if its label is ignored, NaN if it is no class. label_logit(row,
  // label) is the logit of a label that has a column.
  template <class LabelLogit>
  FUSEDOPS_HD A finish(int64_t row, const RowStats<A>& sums, const LabelLogit& label_logit) const {
    const int64_t label = this->labels[row];
    const A log_sum = std::log(sums.exponentials), log_all = sums.max + log_sum;
    const bool is_target = this->is_class(label), has_column = is_target && this->has_column_of(label);
    const A weight = has_column ? this->weight(label) : A(0);
    A loss = has_column ? log_sum + (sums.max - label_logit(row, label)) : A(0), target = weight;
    if (this->class_weight) loss *= weight;
    if (this->smoothing != 0) {
      const bool is_one = !this->class_weight && this->columns == this->classes;
      const A share = is_one ? A(1) : sums.share;
      loss = this->label_weight * loss + this->smoothing * (share * log_sum - sums.moment);
      target = is_one ? A(1) : this->label_weight * weight + this->smoothing * share;
    }
    A scale = target;
    if (this->z_loss != 0) {
      loss += this->z_loss * log_all * log_all;
      scale += 2 * this->z_loss * log_all;
    }
    const bool counts = !this->is_ignored(label);
    lse[row] = {sums.max, log_sum, counts ? scale : A(0)};
    if (!counts) return 0;
    return is_target ? loss : std::numeric_limits<A>::quiet_NaN();
  }

  A* loss;
  Lse<A>* lse;
  A* count;
};

template <class A>
struct LossGradient : LossRows<A> {
  LossGradient() = default;
  LossGradient(const Call& call, const LossInputs& at, int64_t rows, int64_t columns)
      : LossGradient(call, at, rows, columns, call.input<A>(at.dloss), call.input<Lse<A>>(at.lse),
                     call.input<A>(at.count)) {
    dlog_prob = call.input<A>(at.dlog_prob);
    dlse = call.input<A>(at.dlse);
    dentropy = this->has_entropy ? call.input<A>(at.dentropy) : nullptr;
    entropy = call.input<A>(at.entropy);
  }
  LossGradient(const Call& call, const LossArguments& at, int64_t rows, int64_t columns, const A* dloss,
               const Lse<A>* lse, const A* count)
      : LossRows<A>(call, at, rows, columns),
        dloss(dloss),
        lse(lse),
        count(count),
        uniform(static_cast<A>(call.attributes.or_zero(at.label_smoothing) / static_cast<double>(this->classes))) {}

  // True if the row has no gradient.
  FUSEDOPS_HD bool is_zero(int64_t label) const { return this->is_ignored(label) && !dlse; }

  // Upstream gradient of the row's loss; NaN if the label is no class.
  FUSEDOPS_HD A slope(int64_t row) const {
    const int64_t label = this->labels[row];
    if (!this->is_class(label) && !this->is_ignored(label)) return std::numeric_limits<A>::quiet_NaN();
    return count ? upstream_of_row(this->reduction, dloss, count, row) : A(1);
  }

  // Derivative by a logit of the row, for `target`, which is q of its class.
  struct LogitDerivative {
    A max, log2_sum, scale, log2_scale, slope;

    FUSEDOPS_HD A operator()(A x, A target) const {
      return (exp2_((x - max) * A(kLog2E) - log2_sum) * scale - target) * slope;
    }

    FUSEDOPS_HD A with_entropy(A x, A target) const {
      A log2_p = (x - max) * A(kLog2E) - log2_sum;
      log2_p = log2_p < -2 * LossRows<A>::kFar ? -2 * LossRows<A>::kFar : log2_p;  // NaN is propagated
      return (exp2_(log2_p) * (scale + log2_scale * log2_p) - target) * slope;
    }
  };

  FUSEDOPS_HD LogitDerivative derivative(int64_t row) const {
    const Lse<A> of_row = lse[row];
    LogitDerivative result = {of_row.max, of_row.log_sum * A(kLog2E), of_row.scale, 0, slope(row)};
    if (count) return result;
    const bool counts = !this->is_ignored(this->labels[row]);
    result.scale = dlse ? dlse[row] : A(0);
    if (counts && dlog_prob) result.scale -= dlog_prob[row];
    if (counts && dentropy) {
      result.scale -= dentropy[row] * entropy[row];
      result.log2_scale = -dentropy[row] * A(1 / kLog2E);
    }
    return result;
  }

  // q of a class other than the label.
  FUSEDOPS_HD A target(int64_t of_class) const {
    return this->has_shares() ? uniform * this->weight(of_class) : uniform;
  }

  FUSEDOPS_HD A target_of_label(int64_t row, int64_t label) const {
    if (this->is_ignored(label) || !this->is_class(label)) return 0;  // the slope of the latter is NaN
    if (!count) return dlog_prob ? -dlog_prob[row] : A(0);
    return target(label) + this->label_weight * this->weight(label);
  }

  const A* dloss;                                                      // null: 1
  const A *dlog_prob = nullptr, *dlse = nullptr, *dentropy = nullptr;  // null: 0
  const Lse<A>* lse;
  const A* count;  // null: the gradient of linear_log_prob
  const A* entropy = nullptr;
  A uniform;  // smoothing / classes
};

// Division of rows of logits into tiles, on a GPU and in linear_cross_entropy, and of rows into blocks whose losses the
// GPU sums. Depends on the shape alone.
struct LossTiles {
  static constexpr int64_t kTileBytes = 32 << 10, kBlockRows = 256;

  LossTiles(int64_t rows, int64_t classes, DType dtype)
      : tiles(std::max<int64_t>((classes * size_of(dtype) + kTileBytes - 1) / kTileBytes, 1)),
        blocks((rows + kBlockRows - 1) / kBlockRows) {}

  int64_t tiles;  // per row
  int64_t blocks;
};

}  // namespace fusedops
