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

Status check_smoothing(const Rule& rule, const CrossEntropyPlaces& at) {
  const double smoothing = rule.attributes[at.label_smoothing];
  if (smoothing >= 0 && smoothing <= 1) return {};
  return Status::error("fusedops.", rule.op.name, ": label_smoothing must be in [0, 1]; got ", spelled(smoothing));
}

Status check_labels(Rule& rule, const CrossEntropyPlaces& at) {
  Shape &got = rule.inputs[at.labels], &of_logits = rule.inputs[at.logits];
  if (got.dtype != DType::i32 && got.dtype != DType::i64)
    return rule.must(at.labels, "be int32 or int64", name_of(got.dtype));
  if (!got.ranked || !of_logits.ranked) return {};
  bool equal = got.rank == of_logits.rank - 1;
  for (int i = 0; equal && i < got.rank; ++i) equal = rule.same(of_logits.dims[i], got.dims[i]);
  if (equal) return {};
  const Shape expected = rule.row_shape(at.logits, got.dtype);
  return rule.must(at.labels, "have shape " + rule.show(expected) + ", that of the rows of logits", rule.show(got));
}

bool is_per_row(const Rule& rule, const CrossEntropyPlaces& at) { return rule.attributes[at.reduction] == "none"; }

// Two numbers for each row.
Shape lse_shape(const Rule& rule, int logits) {
  Shape shape = rule.inputs[logits];
  shape.dtype = compute_dtype(shape.dtype);
  if (shape.ranked) shape.dims[shape.rank - 1] = 2;
  return shape;
}

Status forward_rule(Rule& rule) {
  constexpr CrossEntropyPlaces at = kCrossEntropy;
  FUSEDOPS_TRY(rule.has_rows(at.logits));
  FUSEDOPS_TRY(check_labels(rule, at));
  FUSEDOPS_TRY(check_smoothing(rule, at));
  const DType dtype = compute_dtype(rule.inputs[at.logits].dtype);
  Shape& loss = rule.outputs[output_of(kCrossEntropy, "loss")];
  loss = is_per_row(rule, at) ? rule.row_shape(at.logits, dtype) : Shape::of(dtype);
  if (!loss.ranked) {  // the shape of the labels may be known
    loss = rule.inputs[at.labels];
    loss.dtype = dtype;
  }
  rule.outputs[output_of(kCrossEntropy, "lse")] = lse_shape(rule, at.logits);
  rule.outputs[output_of(kCrossEntropy, "count")] = Shape::of(dtype);
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
  constexpr CrossEntropyPlaces at = kCrossEntropyBackward;
  constexpr int kDloss = input_of(kCrossEntropyBackward, "dloss");
  FUSEDOPS_TRY(rule.has_rows(at.logits));
  FUSEDOPS_TRY(check_labels(rule, at));
  FUSEDOPS_TRY(check_smoothing(rule, at));
  FUSEDOPS_TRY(check_lse(rule, input_of(kCrossEntropyBackward, "lse"), at.logits));
  const DType dtype = compute_dtype(rule.inputs[at.logits].dtype);
  FUSEDOPS_TRY(check_number(rule, input_of(kCrossEntropyBackward, "count"), dtype));
  FUSEDOPS_TRY(is_per_row(rule, at) ? rule.per_row(kDloss, at.logits) : check_number(rule, kDloss, dtype));
  rule.outputs[output_of(kCrossEntropyBackward, "dlogits")] = rule.inputs[at.logits];
  return {};
}

// The number of rows that are not ignored, or an error that names the first label that is no class.
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
    sums.mean += cpu::interleaved_sum<A>(size, [=, max = max](int64_t i) { return (wide[i] - max) * share; });
  }
  return sums;
}

// On the GPU: RowSums of every tile, then the loss and the number of rows of every block. The CPU needs less: the
// loss of every row.
size_t forward_workspace(const Call& call) {
  const View& logits = *call.inputs[input_of(kCrossEntropy, "logits")];
  const Rows shape = as_rows(logits);
  const CrossEntropyTiles tile_sums(shape.count, shape.size, logits.dtype);
  return (3 * shape.count * tile_sums.tiles + 2 * tile_sums.blocks) * size_of(compute_dtype(logits.dtype));
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
  return dispatch(call.inputs[input_of(kCrossEntropy, "logits")]->dtype, [&](auto tag) {
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
  return dispatch(call.outputs[output_of(kCrossEntropyBackward, "dlogits")].dtype, [&](auto tag) {
    return backward_rows(CrossEntropyBackward<typename decltype(tag)::type>(call), call.context);
  });
}

}  // namespace

const Operator& cross_entropy() {
  static const Operator op{
      kCrossEntropy,
      {.derivative = {{.op = "cross_entropy_backward",
                       .inputs = {"dloss", "logits", "labels", "lse", "count"},
                       .gradients = {{"logits", "dlogits"}}}},
       .rule = forward_rule,
       .workspace = forward_workspace,
       .cpu = cross_entropy_cpu,
       .cuda = cross_entropy_cuda},
  };
  return op;
}

const Operator& cross_entropy_backward() {
  static const Operator op{
      kCrossEntropyBackward,
      {.rule = backward_rule, .cpu = cross_entropy_backward_cpu, .cuda = cross_entropy_backward_cuda},
  };
  return op;
}

}  // namespace fusedops
