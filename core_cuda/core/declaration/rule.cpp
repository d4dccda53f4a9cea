#include "core/declaration/rule.h"

#include <algorithm>

#include "core/declaration/numbers.h"
#include "core/declaration/operator.h"

namespace fusedops {

Shape& Shape::operator=(const Shape& other) {
  present = other.present;
  dtype = other.dtype;
  ranked = other.ranked;
  rank = other.rank;
  if (ranked) std::copy_n(other.dims, rank, dims);
  return *this;
}

Shape Shape::of(DType dtype, std::initializer_list<Dim> dims) {
  Shape shape;
  shape.present = true;
  shape.dtype = dtype;
  shape.rank = static_cast<int>(dims.size());
  std::copy(dims.begin(), dims.end(), shape.dims);
  return shape;
}

// A symbol is never 1: PyTorch's tracers pass that size as a number.
bool Rule::broadcast(Dim& a, Dim b) {
  if (b == 1) return true;
  if (a != 1) return same(a, b);
  a = b;
  return true;
}

const char* Rule::input_name(int input) const { return op.inputs[input].name; }

std::string Rule::show(Dim dim) const { return dim < 0 ? "?" : std::to_string(dim); }

std::string Rule::show(const Shape& shape) const {
  if (!shape.ranked) return "an unknown shape";
  std::string text = "[";
  for (int i = 0; i < shape.rank; ++i) text += (i ? ", " : "") + show(shape.dims[i]);
  return text + "]";
}

Status Rule::must(int input, std::string_view expected, std::string_view got, int64_t item) const {
  std::string place;
  if (item != kNotInList) place.append("[").append(std::to_string(item)).append("]");
  return Status::error("fusedops.", public_name(op), ": ", input_name(input), place, " must ", expected, "; got ", got);
}

Status Rule::check_rank(int input, int rank, int64_t item) const {
  if (rank <= kMaxRank) return {};
  return must(input, "have at most " + std::to_string(kMaxRank) + " dimensions", std::to_string(rank), item);
}

void Rule::read(int, int64_t, Shape*) {}

namespace {

Status check_choice(const Rule& rule, const Attribute& attribute, const std::string& got) {
  if (attribute.choices.empty() || std::ranges::find(attribute.choices, got) != attribute.choices.end()) return {};
  std::string names;
  for (const std::string_view choice : attribute.choices) names.append(names.empty() ? "" : ", ").append(choice);
  return must_be(rule, attribute.name, "one of " + names, "'" + got + "'");
}

Status check_bounds(const Rule& rule, const Attribute& attribute, const Value& got) {
  if (!attribute.bounds) return {};
  const Bounds& bounds = *attribute.bounds;
  switch (attribute.type) {
    case Type::f64:
      return bounds.contain(got.f64) ? Status()
                                     : must_be(rule, attribute.name, bounds_text(attribute), spelled(got.f64));
    case Type::i64:
      return bounds.contain(static_cast<double>(got.i64))
                 ? Status()
                 : must_be(rule, attribute.name, bounds_text(attribute), std::to_string(got.i64));
    case Type::f64s:
      for (const double number : got.f64s)
        if (!bounds.contain(number)) return must_be(rule, attribute.name, bounds_text(attribute), spelled(number));
      return {};
    default:
      return {};
  }
}

bool can_have_one_element(Rule& rule, Shape& shape) {
  for (int i = 0; shape.ranked && i < shape.rank; ++i)
    if (!rule.same(shape.dims[i], 1)) return false;
  return true;
}

}  // namespace

Status Rule::check_attributes() const {
  for (size_t i = 0; i < op.attributes.size(); ++i) {
    const Attribute& attribute = op.attributes[i];
    if (attribute.choices.empty() && !attribute.bounds) continue;
    const Value& got = attributes.at(static_cast<int>(i));
    FUSEDOPS_TRY(check_choice(*this, attribute, got.string));
    FUSEDOPS_TRY(check_bounds(*this, attribute, got));
  }
  return {};
}

Status Rule::floating(int input) const {
  if (is_floating(inputs[input].dtype)) return {};
  return must(input, "be float64, float32, float16 or bfloat16", name_of(inputs[input].dtype));
}

Status Rule::same_dtype(int input, int like) const {
  const DType expected = inputs[like].dtype;
  if (inputs[input].dtype == expected) return {};
  return must(input, std::string("have ") + input_name(like) + "'s dtype, " + name_of(expected),
              name_of(inputs[input].dtype));
}

Status Rule::same_dtype_or_f32(int input, int like) const {
  const DType dtype = inputs[input].dtype, expected = inputs[like].dtype;
  if (dtype == expected || dtype == DType::f32) return {};
  return must(input, std::string("have ") + input_name(like) + "'s dtype, " + name_of(expected) + ", or float32",
              name_of(dtype));
}

Status Rule::same_as(int input, int like) {
  FUSEDOPS_TRY(same_dtype(input, like));
  Shape &got = inputs[input], &expected = inputs[like];
  if (!expected.ranked) {
    const DType dtype = expected.dtype;
    expected = got;
    expected.dtype = dtype;
    return {};
  }
  if (same_shape(expected, got)) return {};
  return must(input, std::string("have ") + input_name(like) + "'s shape, " + show(expected), show(got));
}

bool Rule::same_shape(Shape& a, const Shape& b) {
  if (!a.ranked || !b.ranked) return true;
  bool equal = a.rank == b.rank;
  for (int i = 0; equal && i < a.rank; ++i) equal = same(a.dims[i], b.dims[i]);
  return equal;
}

Status Rule::summarize(int list) {
  Shape& shape = inputs[list];
  shape.present = counts[list] > 0;
  if (!shape.present) {
    if (first_tensor(op) == static_cast<size_t>(list)) return must(list, "have at least one tensor", "none");
    return {};
  }
  read(list, 0, &shape);
  shape.ranked = false;
  Shape other;
  for (int64_t i = 1; i < counts[list]; ++i) {
    read(list, i, &other);
    if (other.dtype == shape.dtype) continue;
    return must(list, std::string("have ") + input_name(list) + "[0]'s dtype, " + name_of(shape.dtype),
                name_of(other.dtype), i);
  }
  return {};
}

Status Rule::same_count(int input, int like) const {
  if (counts[input] == counts[like]) return {};
  return must(input, std::string("have as many tensors as ") + input_name(like) + ", " + std::to_string(counts[like]),
              std::to_string(counts[input]));
}

Status Rule::same_shapes(int input, int like) {
  FUSEDOPS_TRY(same_count(input, like));
  Shape got, expected;
  for (int64_t i = 0; i < counts[input]; ++i) {
    read(input, i, &got);
    read(like, i, &expected);
    if (same_shape(expected, got)) continue;
    return must(input,
                std::string("have ") + input_name(like) + "[" + std::to_string(i) + "]'s shape, " + show(expected),
                show(got), i);
  }
  return {};
}

Status Rule::one_element_each(int input, int like) {
  FUSEDOPS_TRY(same_count(input, like));
  Shape got;
  for (int64_t i = 0; i < counts[input]; ++i) {
    read(input, i, &got);
    if (!can_have_one_element(*this, got)) return must(input, "have one element", "shape " + show(got), i);
  }
  return {};
}

Status Rule::one_element(int input, int like) {
  if (!inputs[input].present) return {};
  FUSEDOPS_TRY(inputs[like].dtype == DType::f32 ? same_dtype(input, like) : same_dtype_or_f32(input, like));
  return has_one_element(input, "be a number or a tensor of one element");
}

Status Rule::has_one_element(int input, std::string_view expected) {
  if (can_have_one_element(*this, inputs[input])) return {};
  return must(input, expected, "shape " + show(inputs[input]));
}

Status Rule::has_rows(int input) {
  FUSEDOPS_TRY(floating(input));
  if (!inputs[input].ranked || inputs[input].rank > 0) return {};
  return must(input, "have at least one dimension", "shape []");
}

Status Rule::per_column(int input, int like) {
  Shape &got = inputs[input], &rows = inputs[like];
  if (!got.present) return {};
  const bool narrow = size_of(rows.dtype) == 2;
  FUSEDOPS_TRY(narrow ? same_dtype_or_f32(input, like) : same_dtype(input, like));
  if (!got.ranked) return {};
  const bool known = rows.ranked && rows.rank > 0;
  if (got.rank == 1 && (!known || same(rows.dims[rows.rank - 1], got.dims[0]))) return {};
  const std::string columns = known ? show(rows.dims[rows.rank - 1]) : "?";
  return must(input, "have shape [" + columns + "], the last dimension of " + input_name(like), show(got));
}

Status Rule::per_row(int input, int like) {
  Shape& got = inputs[input];
  const DType dtype = compute_dtype(inputs[like].dtype);
  if (got.dtype != dtype) return must(input, std::string("be ") + name_of(dtype), name_of(got.dtype));
  Shape expected = row_shape(like, dtype);
  if (!got.ranked || !expected.ranked) return {};
  bool equal = got.rank == expected.rank;
  for (int i = 0; equal && i < got.rank; ++i) equal = same(inputs[like].dims[i], got.dims[i]);
  if (equal) return {};
  return must(input, "have shape " + show(expected) + ", that of the rows of " + input_name(like), show(got));
}

Shape Rule::gradient(int input, bool is_wanted, int like) const {
  const Shape& shape = inputs[input];
  return shape.present && is_wanted ? shape : Shape::of(inputs[shape.present ? input : like].dtype, {0});
}

Shape Rule::row_shape(int like, DType dtype) const {
  Shape shape = inputs[like];
  shape.present = true;
  shape.dtype = dtype;
  if (shape.ranked) shape.rank -= 1;
  return shape;
}

}  // namespace fusedops
