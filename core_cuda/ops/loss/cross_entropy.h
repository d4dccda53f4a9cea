// cross_entropy: loss = -log softmax(logits)[label], over the last dimension, with a share of label_smoothing spread
// over all classes: (1 - smoothing) * (lse - x[label]) + smoothing * (lse - mean(x)), lse = log(sum(exp(x))).
//   backward: dlogits = (exp(x - lse) - smoothing / classes - (1 - smoothing) * [label]) * slope of the row
// lse is stored in two parts: the largest logit, and the logarithm of the sum relative to it. Their sum would lose
// the digits of the logarithm beside a large logit.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/common/exp.h"
#include "core/common/numeric.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr std::string_view kReductions[] = {"mean", "sum", "none"};
inline constexpr AttributeList kCrossEntropyOptions = {
    {"ignore_index", Type::i64, "-100"},
    {"label_smoothing", Type::f64, "0.0"},
    {"reduction", Type::string, "mean", kReductions},
};

// lse is [..., 2], count the number of rows that are not ignored.
inline constexpr Signature kCrossEntropy{
    .name = "cross_entropy",
    .inputs = {{"logits", Kind::tensor, Layout::rows}, {"labels"}},
    .outputs = {{"loss", "compute(logits)"}, {"lse", "compute(logits)", true}, {"count", "compute(logits)", true}},
    .attributes = kCrossEntropyOptions,
};

const Operator& cross_entropy();
FUSEDOPS_CUDA_KERNEL Status cross_entropy_cuda(const Call& call);

inline constexpr Signature kCrossEntropyBackward{
    .name = "cross_entropy_backward",
    .inputs = {{"dloss"}, {"logits", Kind::tensor, Layout::rows}, {"labels"}, {"lse"}, {"count"}},
    .outputs = {{"dlogits", "logits"}},
    .attributes = kCrossEntropyOptions,
};

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

// Where forward and backward have what they share.
struct CrossEntropyPlaces {
  int logits, labels;
  AttributePlace<int64_t> ignore_index;
  AttributePlace<double> label_smoothing;
  AttributePlace<std::string> reduction;

  consteval CrossEntropyPlaces(const Signature& op)
      : logits(input_of(op, "logits")),
        labels(input_of(op, "labels")),
        ignore_index(attribute_of<int64_t>(op, "ignore_index")),
        label_smoothing(attribute_of<double>(op, "label_smoothing")),
        reduction(attribute_of<std::string>(op, "reduction")) {}
};

// The logits' rows, their labels and the options.
template <class T>
struct CrossEntropyRows {
  using A = compute_t<T>;

  CrossEntropyRows(const Call& call, const CrossEntropyPlaces& at)
      : logits(call.input<T>(at.logits)),
        labels(*call.inputs[at.labels], call.attributes[at.ignore_index]),
        smoothing(static_cast<A>(call.attributes[at.label_smoothing])),
        sharpness(static_cast<A>(1 - call.attributes[at.label_smoothing])) {
    const Rows shape = as_rows(*call.inputs[at.logits]);
    rows = shape.count, classes = shape.size, stride = shape.stride;
    const std::string& name = call.attributes[at.reduction];
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

// The sums over a row, or over a tile of it.
template <class A>
struct RowSums {
  A max;
  A exponentials;  // the sum of exp(x - max)
  A mean;  // the sum of (x - max) / classes, divided term by term, so that it cannot overflow; only if labels are
           // smoothed
};

template <class A>
struct Lse {
  A max, log_sum;
};

// How the GPU cuts rows into tiles, and groups rows into blocks whose losses are added. It depends on the shape alone.
struct CrossEntropyTiles {
  static constexpr int64_t kTileBytes = 32 << 10, kBlockRows = 256;

  CrossEntropyTiles(int64_t rows, int64_t classes, DType dtype)
      : tiles(std::max<int64_t>((classes * size_of(dtype) + kTileBytes - 1) / kTileBytes, 1)),
        blocks((rows + kBlockRows - 1) / kBlockRows) {}

  int64_t tiles;  // of a row
  int64_t blocks;
};

template <class T>
struct CrossEntropy : CrossEntropyRows<T> {
  using A = compute_t<T>;

  explicit CrossEntropy(const Call& call)
      : CrossEntropyRows<T>(call, kCrossEntropy),
        loss(call.output<A>(output_of(kCrossEntropy, "loss"))),
        lse(call.output<Lse<A>>(output_of(kCrossEntropy, "lse"))),
        count(call.output<A>(output_of(kCrossEntropy, "count"))),
        workspace(call.workspace) {}

  FUSEDOPS_HD Lse<A> row_lse(const RowSums<A>& sums) const { return {sums.max, std::log(sums.exponentials)}; }

  // The loss of a row whose label is a class.
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

  explicit CrossEntropyBackward(const Call& call)
      : CrossEntropyRows<T>(call, kCrossEntropyBackward),
        dloss(call.input<A>(input_of(kCrossEntropyBackward, "dloss"))),
        lse(call.input<Lse<A>>(input_of(kCrossEntropyBackward, "lse"))),
        count(call.input<A>(input_of(kCrossEntropyBackward, "count"))),
        dlogits(call.output<T>(output_of(kCrossEntropyBackward, "dlogits"))) {
    const double smoothing = call.attributes[attribute_of<double>(kCrossEntropyBackward, "label_smoothing")];
    uniform = static_cast<A>(smoothing / static_cast<double>(this->classes));
  }

  // The factor of the row's gradient.
  FUSEDOPS_HD A slope(int64_t row) const {
    if (this->reduction == Reduction::none) return dloss[row];
    return this->reduction == Reduction::sum ? *dloss : *dloss / *count;
  }

  // The derivative by the logits of one row, without the term of the label.
  struct Row {
    A max, log2_sum, uniform, slope;

    FUSEDOPS_HD A operator()(A x) const { return (exp2_((x - max) * A(kLog2E) - log2_sum) - uniform) * slope; }
  };

  FUSEDOPS_HD Row derivative(int64_t row, A slope) const {
    return {lse[row].max, lse[row].log_sum * A(kLog2E), uniform, slope};
  }

  // The same with the term of the label.
  FUSEDOPS_HD Row derivative_of_label(int64_t row, A slope) const {
    return {lse[row].max, lse[row].log_sum * A(kLog2E), uniform + this->sharpness, slope};
  }

  const A* dloss;
  const Lse<A>* lse;
  const A* count;
  T* dlogits;
  A uniform;  // each class's share of the smoothing
};

}  // namespace fusedops
