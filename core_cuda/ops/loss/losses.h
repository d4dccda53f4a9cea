// Row-wise formulas of cross_entropy and linear_cross_entropy: labels, options, the loss from sums over the logits, and
// the gradient of a logit. With label_smoothing, the loss is
//   (1 - smoothing) * (lse - x[label]) + smoothing * (lse - mean(x)), lse = log(sum(exp(x)))
// and its gradient by x
//   (exp(x - lse) - smoothing / classes - (1 - smoothing) * [label]) * slope of the row.
// lse is stored as two numbers: the largest logit, and the logarithm of the sum relative to it. Their sum would lose
// the digits of the logarithm if the logit is large.
//
// The logits may be a shard of the classes, from first_class on. Labels then count over all classes, and x[c] is 0 for
// a class c of another shard:
//   loss = lse - (1 - smoothing) * x[label] - smoothing * sum(x) / classes
// The sums, and so lse, are over this shard alone. The gradient is as above.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/common/exp.h"
#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr std::string_view kReductions[] = {"mean", "sum", "none"};

enum class Reduction : uint8_t { none, sum, mean };

// Argument indices that all loss operators have.
struct LossArguments {
  int labels;
  AttributeIndex<int64_t> ignore_index;
  AttributeIndex<double> label_smoothing;
  AttributeIndex<std::string> reduction;
  AttributeIndex<int64_t> first_class, classes;

  consteval LossArguments(const Signature& op)
      : labels(input_of(op, "labels")),
        ignore_index(attribute_of<int64_t>(op, "ignore_index")),
        label_smoothing(attribute_of<double>(op, "label_smoothing")),
        reduction(attribute_of<std::string>(op, "reduction")),
        first_class(attribute_of<int64_t>(op, "first_class")),
        classes(attribute_of<int64_t>(op, "classes")) {}
};

// Output indices of a forward. lse is [..., 2]; count is the number of rows that are not ignored.
struct LossOutputs : LossArguments {
  int loss, lse, count;

  consteval LossOutputs(const Signature& op)
      : LossArguments(op), loss(output_of(op, "loss")), lse(output_of(op, "lse")), count(output_of(op, "count")) {}
};

// Input indices of a backward.
struct LossInputs : LossArguments {
  int dloss, lse, count;

  consteval LossInputs(const Signature& op)
      : LossArguments(op), dloss(input_of(op, "dloss")), lse(input_of(op, "lse")), count(input_of(op, "count")) {}
};

// Checks labels, options and saved statistics, and infers the outputs of a forward. The rows are those of the input
// `rows_of`.
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

// A: the type in which the loss is computed.
template <class A>
struct LossRows {
  LossRows() = default;
  LossRows(const Call& call, const LossArguments& at, int64_t rows, int64_t columns)
      : rows(rows),
        columns(columns),
        first_class(call.attributes[at.first_class]),
        classes(call.attributes[at.classes] ? call.attributes[at.classes] : columns),
        labels(*call.inputs[at.labels], call.attributes[at.ignore_index]),
        smoothing(static_cast<A>(call.attributes[at.label_smoothing])),
        label_weight(static_cast<A>(1 - call.attributes[at.label_smoothing])) {
    const std::string& name = call.attributes[at.reduction];
    reduction = name == "none" ? Reduction::none : name == "sum" ? Reduction::sum : Reduction::mean;
  }

  FUSEDOPS_HD bool is_ignored(int64_t label) const { return label == labels.ignored; }
  FUSEDOPS_HD bool is_class(int64_t label) const { return label >= 0 && label < classes; }
  // The column of a label; it may be out of range.
  FUSEDOPS_HD int64_t column_of(int64_t label) const { return label - first_class; }
  FUSEDOPS_HD bool has_column_of(int64_t label) const { return column_of(label) >= 0 && column_of(label) < columns; }

  int64_t rows, columns;
  int64_t first_class, classes;  // class of the first column, number of all classes
  Labels labels;
  A smoothing, label_weight;  // their sum is 1
  Reduction reduction;
};

// Statistics of a row of logits, or of a tile of it.
template <class A>
struct RowStats {
  A max;
  A exponentials;    // sum of exp(x - max)
  A mean;            // with smoothing: sum of (x - max) / classes, divided term by term to avoid overflow
  A class_fraction;  // fraction of the classes in the tile
};

template <class A>
struct Lse {
  A max, log_sum;
};

template <class A>
struct Losses : LossRows<A> {
  Losses(const Call& call, const LossOutputs& at, int64_t rows, int64_t columns)
      : LossRows<A>(call, at, rows, columns),
        loss(call.output<A>(at.loss)),
        lse(call.output<Lse<A>>(at.lse)),
        count(call.output<A>(at.count)),
        missing_fraction(1 - static_cast<A>(columns) / static_cast<A>(std::max<int64_t>(this->classes, 1))) {}
  // Rows of which only sums are computed.
  explicit Losses(const LossRows<A>& rows)
      : LossRows<A>(rows), loss(nullptr), lse(nullptr), count(nullptr), missing_fraction(0) {}

  // The rows from `row` on of a call with a reduction.
  Losses rows_from(int64_t row, int64_t count) const {
    Losses part = *this;
    part.rows = count;
    part.labels = this->labels.from(row);
    part.lse += row;
    return part;
  }

  // Combines the sums of tiles into those of a row or a larger tile.
  FUSEDOPS_HD RowStats<A> combined(const RowStats<A>* tiles, int64_t count) const {
    RowStats<A> row = {-std::numeric_limits<A>::infinity(), 0, 0, 0};
    for (int64_t i = 0; i < count; ++i) row.max = fmax(row.max, tiles[i].max);
    for (int64_t i = 0; i < count; ++i) {
      const A below = tiles[i].max == row.max ? A(0) : tiles[i].max - row.max;  // 0 for equal infinities
      row.exponentials += tiles[i].exponentials * exp2_or_zero(below * A(kLog2E));
      row.class_fraction += tiles[i].class_fraction;
      if (this->smoothing != 0) row.mean += tiles[i].mean + below * tiles[i].class_fraction;
    }
    return row;
  }

  FUSEDOPS_HD Lse<A> row_lse(const RowStats<A>& sums) const { return {sums.max, std::log(sums.exponentials)}; }

  // The loss of a row whose label is a class. label_logit(row, label) is the logit of a label that has a column.
  template <class LabelLogit>
  FUSEDOPS_HD A row_loss(int64_t row, int64_t label, const RowStats<A>& sums, const Lse<A>& lse,
                         const LabelLogit& label_logit) const {
    const A of_label = this->has_column_of(label) ? label_logit(row, label) : A(0);
    const A loss = lse.log_sum + (lse.max - of_label);
    if (this->smoothing == 0) return loss;
    A rest = lse.log_sum - sums.mean;
    if (missing_fraction != 0) rest += missing_fraction * lse.max;
    return this->label_weight * loss + this->smoothing * rest;
  }

  A* loss;
  Lse<A>* lse;
  A* count;
  A missing_fraction;  // fraction of the classes in other shards
};

template <class A>
struct LossGradient : LossRows<A> {
  LossGradient() = default;
  LossGradient(const Call& call, const LossInputs& at, int64_t rows, int64_t columns)
      : LossGradient(call, at, rows, columns, call.input<A>(at.dloss), call.input<Lse<A>>(at.lse),
                     call.input<A>(at.count)) {}
  LossGradient(const Call& call, const LossArguments& at, int64_t rows, int64_t columns, const A* dloss,
               const Lse<A>* lse, const A* count)
      : LossRows<A>(call, at, rows, columns),
        dloss(dloss),
        lse(lse),
        count(count),
        uniform(static_cast<A>(call.attributes[at.label_smoothing] / static_cast<double>(this->classes))) {}

  // Upstream gradient of the row's loss.
  FUSEDOPS_HD A slope(int64_t row) const {
    if (this->reduction == Reduction::none) return dloss[row];
    const A upstream = dloss ? *dloss : A(1);
    return this->reduction == Reduction::sum ? upstream : upstream / *count;
  }

  // Derivative by a logit of the row.
  struct LogitDerivative {
    A max, log2_sum, uniform, slope;

    FUSEDOPS_HD A operator()(A x) const { return (exp2_((x - max) * A(kLog2E) - log2_sum) - uniform) * slope; }
  };

  // For logits other than the label's.
  FUSEDOPS_HD LogitDerivative derivative(int64_t row, A slope) const {
    return {lse[row].max, lse[row].log_sum * A(kLog2E), uniform, slope};
  }

  // For the logit of the label.
  FUSEDOPS_HD LogitDerivative derivative_of_label(int64_t row, A slope) const {
    return {lse[row].max, lse[row].log_sum * A(kLog2E), uniform + this->label_weight, slope};
  }

  const A* dloss;  // null: 1
  const Lse<A>* lse;
  const A* count;
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
