// The rule of all programs: floating inputs determine the dtype, and shapes broadcast as in NumPy.
#include <algorithm>

#include "core/program/program.h"

namespace fusedops::program {
namespace {

// Floating inputs have one dtype, or float32 and one 16-bit dtype in any order. Booleans and integers are allowed.
Status check_dtypes(const Rule& rule, DType element) {
  const auto& inputs = rule.op.inputs;
  int like = -1;  // the first input of that dtype
  bool has_number = false;
  for (int i = 0; i < static_cast<int>(inputs.size()); ++i) {
    if (like < 0 && rule.inputs[i].present && rule.inputs[i].dtype == element) like = i;
    has_number = has_number || (inputs[i].kind == Kind::scalar && !rule.inputs[i].present);
  }
  for (int i = 0; i < static_cast<int>(inputs.size()); ++i) {
    const DType dtype = rule.inputs[i].dtype;
    if (!rule.inputs[i].present || is_integral(dtype)) continue;
    if (!is_floating(dtype))
      return rule.must(i, "be float64, float32, float16, bfloat16, bool or an integer", name_of(dtype));
    FUSEDOPS_TRY(size_of(element) == 2 ? rule.same_dtype_or_f32(i, like) : rule.same_dtype(i, like));
  }
  return like >= 0 || has_number ? Status() : rule.floating(static_cast<int>(first_tensor(rule.op)));
}

// Broadcasts `to` with the shape of an input.
Status broadcast(Rule& rule, int input, Shape& to) {
  const Shape& shape = rule.inputs[input];
  if (!shape.ranked || !to.ranked) {
    to.ranked = false;
    return {};
  }
  Shape wider = to;
  if (shape.rank > to.rank) {
    const int more = shape.rank - to.rank;
    wider.rank = shape.rank;
    std::fill_n(wider.dims, more, 1);
    std::copy_n(to.dims, to.rank, wider.dims + more);
  }
  const int skipped = wider.rank - shape.rank;
  for (int i = 0; i < shape.rank; ++i)
    if (!rule.broadcast(wider.dims[skipped + i], shape.dims[i]))
      return rule.must(input, "broadcast with the inputs before it, which have shape " + rule.show(to),
                       rule.show(shape));
  to = wider;
  return {};
}

}  // namespace

Status rule(Rule& rule) {
  const Program& program = program_of(rule.op);
  const int leading = static_cast<int>(first_tensor(rule.op));
  const DType element =
      element_dtype(rule.op, [&](int i) { return rule.inputs[i].present ? rule.inputs[i].dtype : DType::other; });
  FUSEDOPS_TRY(check_dtypes(rule, element));
  Shape all = Shape::of(element);
  for (int i = 0; i < static_cast<int>(rule.op.inputs.size()); ++i)
    if (rule.inputs[i].present) FUSEDOPS_TRY(broadcast(rule, i, all));
  if (!program.reductions.empty() && all.ranked && all.rank == 0)
    return rule.must(leading, "have at least one dimension, to be reduced over the last one", "shape []");
  for (size_t i = 0; i < program.results.size(); ++i) {
    const int like = program.results[i].like;
    Shape& result = rule.outputs[i];
    result = like < 0 ? all : rule.inputs[like];
    if (like == kLikeRows && result.ranked) result.dims[result.rank - 1] = 1;
    const bool wanted = !program.has_needs || rule.attributes[AttributeIndex<bool>{static_cast<int>(i)}];
    if (wanted && result.present && is_integral(result.dtype))
      return rule.must(like, "be floating to have a gradient", name_of(result.dtype));
    const DType dtype = result.present ? result.dtype : all.dtype;  // the gradient of a number is not wanted
    if (!wanted || !result.present) result = Shape::of(dtype, {0});
  }
  return {};
}

Broadcast::Broadcast(const Call& call) {
  for (const View* input : call.inputs)
    if (input) rank = std::max(rank, input->rank);
  std::fill_n(sizes, rank, 1);
  for (const View* input : call.inputs) {
    if (!input) continue;
    int64_t* const to = sizes + (rank - input->rank);
    for (int i = 0; i < input->rank; ++i)
      if (input->sizes[i] != 1) to[i] = input->sizes[i];
  }
}

}  // namespace fusedops::program
