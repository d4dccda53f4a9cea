// Checks and shape inference of the losses.
#include "ops/loss/losses.h"

#include <algorithm>

namespace fusedops {
namespace {

// Advice appended to the error for labels that match classes in dimension 1, as in PyTorch's loss of [N, C, ...].
std::string advice_on_columns(Rule& rule, const Shape& labels, int rows_of) {
  Shape last = rule.inputs[rows_of];
  if (last.rank < 3 || labels.rank != last.rank - 1) return "";
  std::rotate(last.dims + 1, last.dims + 2, last.dims + last.rank);
  for (int i = 0; i < labels.rank; ++i) {
    Dim size = last.dims[i];
    if (!rule.same(size, labels.dims[i])) return "";
  }
  const std::string name = rule.input_name(rows_of), columns = name == "logits" ? "classes" : "features";
  return ": give " + name + " with the " + columns + " last, as " + rule.show(last);
}

Status check_labels(Rule& rule, const LossArguments& at, int rows_of) {
  Shape &got = rule.inputs[at.labels], &of_rows = rule.inputs[rows_of];
  if (!got.present) return {};
  if (got.dtype != DType::i32 && got.dtype != DType::i64)
    return rule.must(at.labels, "be int32 or int64", name_of(got.dtype));
  if (!got.ranked || !of_rows.ranked) return {};
  bool equal = got.rank == of_rows.rank - 1;
  for (int i = 0; equal && i < got.rank; ++i) equal = rule.same(of_rows.dims[i], got.dims[i]);
  if (equal) return {};
  const std::string expected = rule.show(rule.row_shape(rows_of, got.dtype));
  return rule.must(at.labels, "have shape " + expected + ", that of the rows of " + rule.input_name(rows_of),
                   rule.show(got) + advice_on_columns(rule, got, rows_of));
}

bool is_per_row(const Rule& rule, const LossArguments& at) { return rule.attributes[at.reduction] == "none"; }

Status check_number(const Rule& rule, int input, DType dtype) {
  const Shape& got = rule.inputs[input];
  if (got.dtype != dtype) return rule.must(input, std::string("be ") + name_of(dtype), name_of(got.dtype));
  if (!got.ranked || got.rank == 0) return {};
  return rule.must(input, "have shape []", rule.show(got));
}

Status check_classes(const Rule& rule, const LossArguments& at, const Shape& logits) {
  const int64_t first = rule.attributes.or_zero(at.first_class), classes = rule.attributes.or_zero(at.classes);
  const bool is_known = logits.ranked && logits.dims[logits.rank - 1] >= 0;
  const int64_t least = first + (is_known ? logits.dims[logits.rank - 1] : 0);
  if (classes == 0 ? first == 0 : classes >= least) return {};
  return Status::error("fusedops.", public_name(rule.op), ": classes must be at least ", std::to_string(least),
                       ", first_class and the classes of the logits; got ", std::to_string(classes));
}

Status check_class_weight(Rule& rule, const LossArguments& at, const Shape& logits) {
  if (at.class_weight == kAbsent || !rule.inputs[at.class_weight].present) return {};
  const Shape& got = rule.inputs[at.class_weight];
  if (got.dtype != DType::f32) return rule.must(at.class_weight, "be float32", name_of(got.dtype));
  Shape expected = Shape::of(DType::f32, {rule.attributes.or_zero(at.classes)});
  if (expected.dims[0] == 0 && logits.ranked) expected.dims[0] = logits.dims[logits.rank - 1];
  if (!got.ranked || (expected.dims[0] == 0 && !logits.ranked)) return {};
  if (got.rank == 1 && rule.same(expected.dims[0], got.dims[0])) return {};
  return rule.must(at.class_weight, "have shape " + rule.show(expected) + ", one number for each class",
                   rule.show(got));
}

}  // namespace

Status check_loss_arguments(Rule& rule, const LossArguments& at, int rows_of, const Shape& logits) {
  FUSEDOPS_TRY(rule.has_rows(rows_of));
  FUSEDOPS_TRY(check_classes(rule, at, logits));
  FUSEDOPS_TRY(check_class_weight(rule, at, logits));
  return check_labels(rule, at, rows_of);
}

Shape loss_row_shape(const Rule& rule, const LossArguments& at, int rows_of) {
  const DType dtype = compute_dtype(rule.inputs[rows_of].dtype);
  Shape shape = rule.row_shape(rows_of, dtype);
  if (shape.ranked) return shape;
  if (rule.inputs[at.labels].present) shape = rule.inputs[at.labels];
  shape.dtype = dtype;
  return shape;
}

Shape lse_shape(const Rule& rule, int rows_of) {
  Shape shape = rule.inputs[rows_of];
  shape.dtype = compute_dtype(shape.dtype);
  if (shape.ranked) shape.dims[shape.rank - 1] = 3;
  return shape;
}

Status check_lse(Rule& rule, int lse, int rows_of) {
  const Shape& got = rule.inputs[lse];
  const Shape expected = lse_shape(rule, rows_of);
  if (got.dtype != expected.dtype)
    return rule.must(lse, std::string("be ") + name_of(expected.dtype), name_of(got.dtype));
  if (!got.ranked || !expected.ranked) return {};
  bool equal = got.rank == expected.rank;
  for (int i = 0; equal && i < got.rank; ++i) {
    Dim size = expected.dims[i];
    equal = rule.same(size, got.dims[i]);
  }
  if (equal) return {};
  return rule.must(lse,
                   "have shape " + rule.show(expected) + ", three numbers for each row of " + rule.input_name(rows_of),
                   rule.show(got));
}

Status loss_rule(Rule& rule, const LossOutputs& at, int rows_of, const Shape& logits) {
  FUSEDOPS_TRY(check_loss_arguments(rule, at, rows_of, logits));
  const DType dtype = compute_dtype(rule.inputs[rows_of].dtype);
  rule.outputs[at.loss] = is_per_row(rule, at) ? loss_row_shape(rule, at, rows_of) : Shape::of(dtype);
  if (at.lse != kAbsent) rule.outputs[at.lse] = lse_shape(rule, rows_of);
  rule.outputs[at.count] = Shape::of(dtype);
  return {};
}

Status loss_backward_rule(Rule& rule, const LossInputs& at, int rows_of, const Shape& logits) {
  FUSEDOPS_TRY(check_loss_arguments(rule, at, rows_of, logits));
  if (at.lse != kAbsent) FUSEDOPS_TRY(check_lse(rule, at.lse, rows_of));
  const DType dtype = compute_dtype(rule.inputs[rows_of].dtype);
  FUSEDOPS_TRY(check_number(rule, at.count, dtype));
  return is_per_row(rule, at) ? rule.per_row(at.dloss, rows_of) : check_number(rule, at.dloss, dtype);
}

}  // namespace fusedops
