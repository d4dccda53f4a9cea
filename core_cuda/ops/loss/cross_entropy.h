// cross_entropy: loss = -log softmax(logits)[label], over the last dimension, with a share of label_smoothing spread
// over all classes: (1 - smoothing) * (lse - x[label]) + smoothing * (lse - mean(x)), lse = log(sum(exp(x))).
//   backward: dlogits = (exp(x - lse) - smoothing / classes - (1 - smoothing) * [label]) * slope of the row
// lse is kept in two parts: the largest logit, and the logarithm of the sum relative to it. Their sum would lose the
// digits of the logarithm beside a large logit.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/common/exp.h"
#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

// (logits, labels; ignore_index, label_smoothing, reduction) -> (loss, lse, count): lse is [..., 2], count the number
// of rows that are not ignored.
const Operator& cross_entropy();
FUSEDOPS_CUDA_KERNEL Status cross_entropy_cuda(const Call& call);

// (dloss, logits, labels, lse, count; ignore_index, label_smoothing, reduction) -> dlogits
const Operator& cross_entropy_backward();
FUSEDOPS_CUDA_KERNEL Status cross_entropy_backward_cuda(const Call& call);

enum class Reduction : uint8_t { none, sum, mean };

inline constexpr double kLn2 = 0.69314718055994530942;

// The label of each row.
struct Labels {
  const void* data;
  bool is_i64;
  int64_t ignored;

  Labels(const View& view, int64_t ignored) : data(view.data), is_i64(view.dtype == DType::i64), ignored(ignored) {}

  FUSEDOPS_HD int64_t operator[](int64_t row) const {
    return is_i64 ? static_cast<const int64_t*>(data)[row] : static_cast<const int32_t*>(data)[row];
  }
};

// What forward and backward share: the logits' rows, their labels and the options.
template <class T>
struct CrossEntropyRows {
  using A = compute_t<T>;
  enum : int { kIgnoreIndex, kLabelSmoothing, kReduction };  // of the attributes

  CrossEntropyRows(const Call& call, int logits_input, int labels_input)
      : logits(static_cast<const T*>(call.inputs[logits_input]->data)),
        labels(*call.inputs[labels_input], call.attributes[kIgnoreIndex].i64),
        smoothing(static_cast<A>(call.attributes[kLabelSmoothing].f64)),
        sharpness(static_cast<A>(1 - call.attributes[kLabelSmoothing].f64)) {
    const Rows shape = as_rows(*call.inputs[logits_input]);
    rows = shape.count, classes = shape.size, stride = shape.stride;
    const std::string& name = call.attributes[kReduction].string;
    reduction = name == "none" ? Reduction::none : name == "sum" ? Reduction::sum : Reduction::mean;
  }

  FUSEDOPS_HD bool is_ignored(int64_t label) const { return label == labels.ignored; }
  FUSEDOPS_HD bool is_class(int64_t label) const { return label >= 0 && label < classes; }

  int64_t rows, classes;
  const T* logits;
  int64_t stride;
  Labels labels;
  A smoothing, sharpness;  // their sum is 1
  Reduction reduction;
};

// What is known of a row, or of a segment of it.
template <class A>
struct RowSums {
  A max;
  A exponentials;  // the sum of exp(x - max)
  A mean;          // the sum of (x - max) / classes, term by term: many cannot overflow. Only if labels are smoothed
};

template <class A>
struct Lse {
  A max, log_sum;
};

// How the GPU cuts rows into segments, and rows into blocks whose losses are added: by the shape alone.
struct CrossEntropyParts {
  static constexpr int64_t kSegmentBytes = 32 << 10, kBlockRows = 256;

  CrossEntropyParts(int64_t rows, int64_t classes, DType dtype)
      : segments(std::max<int64_t>((classes * size_of(dtype) + kSegmentBytes - 1) / kSegmentBytes, 1)),
        blocks((rows + kBlockRows - 1) / kBlockRows) {}

  int64_t segments;  // of a row
  int64_t blocks;
};

template <class T>
struct CrossEntropy : CrossEntropyRows<T> {
  using A = compute_t<T>;
  enum : int { kLogits, kLabels };
  enum : int { kLoss, kLse, kCount };  // of the outputs

  explicit CrossEntropy(const Call& call)
      : CrossEntropyRows<T>(call, kLogits, kLabels),
        loss(static_cast<A*>(call.outputs[kLoss].data)),
        lse(static_cast<Lse<A>*>(call.outputs[kLse].data)),
        count(static_cast<A*>(call.outputs[kCount].data)),
        workspace(call.workspace) {}

  FUSEDOPS_HD Lse<A> row_lse(const RowSums<A>& sums) const { return {sums.max, std::log(sums.exponentials)}; }

  // Of a row whose label is a class.
  FUSEDOPS_HD A row_loss(const RowSums<A>& sums, const Lse<A>& lse, A of_label) const {
    const A loss = lse.log_sum + (lse.max - of_label);
    if (this->smoothing == 0) return loss;
    return this->sharpness * loss + this->smoothing * (lse.log_sum - sums.mean);
  }

  A* loss;
  Lse<A>* lse;
  A* count;
  void* workspace;
};

template <class T>
struct CrossEntropyBackward : CrossEntropyRows<T> {
  using A = compute_t<T>;
  enum : int { kDloss, kLogits, kLabels, kLse, kCount };

  explicit CrossEntropyBackward(const Call& call)
      : CrossEntropyRows<T>(call, kLogits, kLabels),
        dloss(static_cast<const A*>(call.inputs[kDloss]->data)),
        lse(static_cast<const Lse<A>*>(call.inputs[kLse]->data)),
        count(static_cast<const A*>(call.inputs[kCount]->data)),
        dlogits(static_cast<T*>(call.outputs[0].data)),
        uniform(static_cast<A>(call.attributes[this->kLabelSmoothing].f64 / static_cast<double>(this->classes))) {}

  // What the row's part of the result is multiplied by.
  FUSEDOPS_HD A slope(int64_t row) const {
    if (this->reduction == Reduction::none) return dloss[row];
    return this->reduction == Reduction::sum ? *dloss : *dloss / *count;
  }

  // Of the logits of one row, but for the term of the label.
  struct Row {
    A max, log2_sum, uniform, slope;

    FUSEDOPS_HD A operator()(A x) const { return (exp2_((x - max) * A(kLog2E) - log2_sum) - uniform) * slope; }
  };

  FUSEDOPS_HD Row derivative(int64_t row, A slope) const {
    return {lse[row].max, lse[row].log_sum * A(kLog2E), uniform, slope};
  }

  // With it.
  FUSEDOPS_HD Row derivative_of_label(int64_t row, A slope) const {
    return {lse[row].max, lse[row].log_sum * A(kLog2E), uniform + this->sharpness, slope};
  }

  const A* dloss;
  const Lse<A>* lse;
  const A* count;
  T* dlogits;
  A uniform;  // each class's part of the smoothing
};

}  // namespace fusedops
