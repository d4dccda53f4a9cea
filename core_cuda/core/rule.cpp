#include "core/rule.h"

#include <algorithm>

#include "core/operator.h"

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

const char* Rule::input_name(int input) const { return op.inputs[input].name; }

std::string Rule::show(Dim dim) const { return dim < 0 ? "?" : std::to_string(dim); }

std::string Rule::show(const Shape& shape) const {
  if (!shape.ranked) return "an unknown shape";
  std::string text = "[";
  for (int i = 0; i < shape.rank; ++i) text += (i ? ", " : "") + show(shape.dims[i]);
  return text + "]";
}

Status Rule::must(int input, std::string_view expected, std::string_view got) const {
  return Status::error("fusedops.", op.name, ": ", input_name(input), " must ", expected, "; got ", got);
}

Status Rule::check_rank(int input, int rank) const {
  if (rank <= kMaxRank) return {};
  return must(input, "have at most " + std::to_string(kMaxRank) + " dimensions", std::to_string(rank));
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

Status Rule::same_as(int input, int like) {
  FUSEDOPS_TRY(same_dtype(input, like));
  Shape &got = inputs[input], &expected = inputs[like];
  if (!expected.ranked) {
    const DType dtype = expected.dtype;
    expected = got;
    expected.dtype = dtype;
    return {};
  }
  if (!got.ranked) return {};
  bool equal = got.rank == expected.rank;
  for (int i = 0; equal && i < got.rank; ++i) equal = same(expected.dims[i], got.dims[i]);
  if (equal) return {};
  return must(input, std::string("have ") + input_name(like) + "'s shape, " + show(expected), show(got));
}

Status Rule::one_element(int input, int like) {
  Shape& shape = inputs[input];
  if (!shape.present) return {};
  const DType dtype = inputs[like].dtype;
  if (dtype == DType::f32) FUSEDOPS_TRY(same_dtype(input, like));
  if (shape.dtype != dtype && shape.dtype != DType::f32)
    return must(input, std::string("have ") + input_name(like) + "'s dtype, " + name_of(dtype) + ", or float32",
                name_of(shape.dtype));
  bool one = true;
  for (int i = 0; shape.ranked && one && i < shape.rank; ++i) {
    Dim unit = 1;
    one = same(shape.dims[i], unit);
  }
  if (one) return {};
  return must(input, "be a number or a tensor of one element", "shape " + show(shape));
}

}  // namespace fusedops
