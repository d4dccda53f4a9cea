#include "ops/loss/cross_entropy.h"

#include <charconv>

#include "core/cpu/elementwise.h"
#include "core/cpu/exp_sum.h"
#include "core/cpu/sum.h"

namespace fusedops {
namespace {

std::string spelled(double number) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), number).ptr;
  return {text, end};
}

Status check_smoothing(const Rule& rule) {
  const double smoothing = rule.attributes[CrossEntropyRows<float>::kLabelSmoothing].f64;
  if (smoothing >= 0 && smoothing <= 1) return {};
  return Status::error("fusedops.", rule.op.name, ": label_smoothing must be in [0, 1]; got ", spelled(smoothing));
}

Status check_labels(Rule& rule, int labels, int logits) {
  Shape &got = rule.inputs[labels], &of_logits = rule.inputs[logits];
  if (got.dtype != DType::i32 && got.dtype != DType::i64)
    return rule.must(labels, "be int32 or int64", name_of(got.dtype));
  if (!got.ranked || !of_logits.ranked) return {};
  bool equal = got.rank == of_logits.rank - 1;
  for (int i = 0; equal && i < got.rank; ++i) equal = rule.same(of_logits.dims[i], got.dims[i]);
  if (equal) return {};
  const Shape expected = rule.row_shape(logits, got.dtype);
  return rule.must(labels, "have shape " + rule.show(expected) + ", that of the rows of logits", rule.show(got));
}

bool is_per_row(const Rule& rule) { return rule.attributes[CrossEntropyRows<float>::kReduction].string == "none"; }

// Two numbers for each row.
Shape lse_shape(const Rule& rule, int logits) {
  Shape shape = rule.inputs[logits];
  shape.dtype = compute_dtype(shape.dtype);
  if (shape.ranked) shape.dims[shape.rank - 1] = 2;
  return shape;
}

Status forward_rule(Rule& rule) {
  using Forward = CrossEntropy<float>;
  FUSEDOPS_TRY(rule.has_rows(Forward::kLogits));
  FUSEDOPS_TRY(check_labels(rule, Forward::kLabels, Forward::kLogits));
  FUSEDOPS_TRY(check_smoothing(rule));
  const DType dtype = compute_dtype(rule.inputs[Forward::kLogits].dtype);
  Shape& loss = rule.outputs[Forward::kLoss];
  loss = is_per_row(rule) ? rule.row_shape(Forward::kLogits, dtype) : Shape::of(dtype);
  if (!loss.ranked) {  // the labels may tell
    loss = rule.inputs[Forward::kLabels];
    loss.dtype = dtype;
  }
  rule.outputs[Forward::kLse] = lse_shape(rule, Forward::kLogits);
  rule.outputs[Forward::kCount] = Shape::of(dtype);
  return {};
}

Status check_lse(Rule& rule, int lse, int logits) {
  const Shape& got = rule.inputs[lse];
  const Shape expected = lse_shape(rule, logits);
  if (got.dtype != expected.dtype)
    return rule.must(lse, std::string("be ") + name_of(expected.dtype), name_of(got.dtype));
  if (!got.ranked || !expected.ranked) return {};
  bool equal = got.rank == expected.rank;
  for (int i = 0; equal && i < got.rank; ++i) {
    Dim size = expected.dims[i];
    equal = rule.same(size, got.dims[i]);
  }
  if (equal) return {};
  return rule.must(lse, "have shape " + rule.show(expected) + ", two numbers for each row of logits", rule.show(got));
}

Status check_number(const Rule& rule, int input, DType dtype) {
  const Shape& got = rule.inputs[input];
  if (got.dtype != dtype) return rule.must(input, std::string("be ") + name_of(dtype), name_of(got.dtype));
  if (!got.ranked || got.rank == 0) return {};
  return rule.must(input, "have shape []", rule.show(got));
}

Status backward_rule(Rule& rule) {
  using Backward = CrossEntropyBackward<float>;
  FUSEDOPS_TRY(rule.has_rows(Backward::kLogits));
  FUSEDOPS_TRY(check_labels(rule, Backward::kLabels, Backward::kLogits));
  FUSEDOPS_TRY(check_smoothing(rule));
  FUSEDOPS_TRY(check_lse(rule, Backward::kLse, Backward::kLogits));
  const DType dtype = compute_dtype(rule.inputs[Backward::kLogits].dtype);
  FUSEDOPS_TRY(check_number(rule, Backward::kCount, dtype));
  FUSEDOPS_TRY(is_per_row(rule) ? rule.per_row(Backward::kDloss, Backward::kLogits)
                                : check_number(rule, Backward::kDloss, dtype));
  rule.outputs[0] = rule.inputs[Backward::kLogits];
  return {};
}

// How many rows count, or a sentence about the first label that is no class.
template <class T>
Status count_rows(const CrossEntropyRows<T>& call, const char* op, int64_t* count) {
  *count = 0;
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t label = call.labels[row];
    if (call.is_ignored(label)) continue;
    if (!call.is_class(label))
      return Status::error("fusedops.", op, ": labels must be in [0, ", std::to_string(call.classes),
                           ") or ignore_index, ", std::to_string(call.labels.ignored), "; got ", std::to_string(label),
                           " in row ", std::to_string(row));
    *count += 1;
  }
  return {};
}

template <class T>
RowSums<compute_t<T>> row_sums(const T* x, int64_t classes, bool smooth) {
  using A = compute_t<T>;
  const auto block = [=](int64_t start, int64_t size, A* buffer) { return cpu::widened(x + start, buffer, size); };
  const auto [max, sum] = cpu::exp_sum<A>(classes, A(kLog2E), nullptr, block);
  RowSums<A> sums{max, sum / cpu::kExpScale<A>, 0};
  if (!smooth) return sums;
  A buffer[cpu::kBlock];
  for (int64_t start = 0; start < classes; start += cpu::kBlock) {
    const int64_t size = std::min(cpu::kBlock, classes - start);
    const A *wide = block(start, size, buffer), share = A(1) / static_cast<A>(classes);
    sums.mean += cpu::lane_sum<A>(size, [=, max = max](int64_t i) { return (wide[i] - max) * share; });
  }
  return sums;
}

// On the GPU: RowSums of every segment, then the loss and the number of rows of every block. On the CPU less: the loss
// of every row.
size_t forward_workspace(const Call& call) {
  const View& logits = *call.inputs[CrossEntropy<float>::kLogits];
  const Rows shape = as_rows(logits);
  const CrossEntropyParts parts(shape.count, shape.size, logits.dtype);
  return (3 * shape.count * parts.segments + 2 * parts.blocks) * size_of(compute_dtype(logits.dtype));
}

template <class T>
Status forward_rows(const CrossEntropy<T>& call, const Context& context) {
  using A = compute_t<T>;
  int64_t count;
  FUSEDOPS_TRY(count_rows(call, "cross_entropy", &count));
  *call.count = static_cast<A>(count);
  A* losses = call.reduction == Reduction::none ? call.loss : static_cast<A*>(call.workspace);
  context.parallel_for(call.rows, 50 + call.classes / 2, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = call.logits + row * call.stride;
      const RowSums<A> sums = row_sums(x, call.classes, call.smoothing != 0);
      const Lse<A> lse = call.lse[row] = call.row_lse(sums);
      const int64_t label = call.labels[row];
      losses[row] = call.is_ignored(label) ? A(0) : call.row_loss(sums, lse, to_compute(x[label]));
    }
  });
  if (call.reduction == Reduction::none) return {};
  const A sum = cpu::pairwise_sum(losses, call.rows);
  *call.loss = call.reduction == Reduction::sum ? sum : sum / *call.count;
  return {};
}

Status cross_entropy_cpu(const Call& call) {
  return dispatch(call.inputs[CrossEntropy<float>::kLogits]->dtype, [&](auto tag) {
    return forward_rows(CrossEntropy<typename decltype(tag)::type>(call), call.context);
  });
}

template <class T>
Status backward_rows(const CrossEntropyBackward<T>& call, const Context& context) {
  using A = compute_t<T>;
  int64_t count;
  FUSEDOPS_TRY(count_rows(call, "cross_entropy_backward", &count));
  const bool streamed = cpu::is_streamed(call.rows * call.classes * sizeof(T));
  context.parallel_for(call.rows, 50 + call.classes / 2, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = call.logits + row * call.stride;
      T* dx = call.dlogits + row * call.classes;
      const int64_t label = call.labels[row];
      if (call.is_ignored(label)) {
        std::fill_n(dx, call.classes, T{});
        continue;
      }
      const A slope = call.slope(row);
      cpu::apply(call.derivative(row, slope), streamed, call.classes, dx, x);
      dx[label] = from_compute<T>(call.derivative_of_label(row, slope)(to_compute(x[label])));
    }
  });
  return {};
}

Status cross_entropy_backward_cpu(const Call& call) {
  return dispatch(call.outputs[0].dtype, [&](auto tag) {
    return backward_rows(CrossEntropyBackward<typename decltype(tag)::type>(call), call.context);
  });
}

const std::vector<Attribute>& options() {
  static constexpr std::string_view kReductions[] = {"mean", "sum", "none"};
  static const std::vector<Attribute> attributes = {{"ignore_index", Type::i64, "-100"},
                                                    {"label_smoothing", Type::f64, "0.0"},
                                                    {"reduction", Type::string, "mean", kReductions}};
  return attributes;
}

}  // namespace

const Operator& cross_entropy() {
  static const Operator op{
      .name = "cross_entropy",
      .inputs = {{"logits", Kind::tensor, Layout::rows}, {"labels"}},
      .outputs = {{"loss", "compute(logits)"}, {"lse", "compute(logits)", true}, {"count", "compute(logits)", true}},
      .attributes = options(),
      .derivative = {{.op = "cross_entropy_backward",
                      .inputs = {"dloss", "logits", "labels", "lse", "count"},
                      .gradients = {{"logits", "dlogits"}}}},
      .rule = forward_rule,
      .workspace = forward_workspace,
      .cpu = cross_entropy_cpu,
      .cuda = cross_entropy_cuda,
  };
  return op;
}

const Operator& cross_entropy_backward() {
  static const Operator op{
      .name = "cross_entropy_backward",
      .inputs = {{"dloss"}, {"logits", Kind::tensor, Layout::rows}, {"labels"}, {"lse"}, {"count"}},
      .outputs = {{"dlogits", "logits"}},
      .attributes = options(),
      .rule = backward_rule,
      .cpu = cross_entropy_backward_cpu,
      .cuda = cross_entropy_backward_cuda,
  };
  return op;
}

}  // namespace fusedops
