// The shape rule of an operator: checks, error sentences and output shapes. Each framework runs it over its own
// dimensions (a number, a symbol being traced, an unknown of a graph).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/declaration/attributes.h"
#include "core/declaration/dtype.h"
#include "core/declaration/partial_array.h"
#include "core/declaration/signature.h"
#include "core/declaration/status.h"
#include "core/declaration/view.h"

namespace fusedops {

struct Operator;

// A dimension: >= 0 is a known size; < 0 is a symbol that only the binding understands.
using Dim = int64_t;

struct Shape {
  bool present = false;  // false: an absent optional, or a scalar passed as a number
  DType dtype = DType::other;
  bool ranked = true;  // false: the graph does not know the rank; `rank` and `dims` are then meaningless
  int rank = 0;
  Dim dims[kMaxRank];

  Shape() {}  // leaves dims uninitialised, since a rule runs at every eager call
  Shape(const Shape& other) { *this = other; }
  Shape& operator=(const Shape& other);

  static Shape of(DType dtype, std::initializer_list<Dim> dims = {});
};

class Rule {
 public:
  static constexpr int64_t kNotInList = -1;

  Rule(const Operator& op, Attributes attributes);
  virtual ~Rule() = default;

  // False if two dimensions are known to differ. May refine a.
  virtual bool same(Dim& a, Dim b) { return a == b; }

  // True if two dimensions may broadcast by NumPy's rules; a becomes the broadcast dimension.
  virtual bool broadcast(Dim& a, Dim b);

  virtual Dim half(Dim dim) { return dim / 2; }  // for an even dimension

  // The number of blocks of kBlock elements that cover a dimension.
  static constexpr Dim kBlock = 128;
  virtual Dim blocks(Dim dim) { return (dim + kBlock - 1) / kBlock; }

  // Reads a tensor of a list. A list may have thousands, so they are read one at a time and not stored.
  virtual void read(int input, int64_t item, Shape* shape);

  // Bindings call this once the inputs are filled in. It runs all checks and sets the outputs.
  Status infer();

  const Operator& op;
  const Attributes attributes;
  PartialArray<Shape, kMaxInputs> inputs;    // for a list: its dtype, without a rank, set by infer()
  PartialArray<int64_t, kMaxInputs> counts;  // for a list: the number of tensors, set by the binding
  PartialArray<Shape, kMaxOutputs> outputs;

  // Bindings call this before they fill in a shape: `dims` has room for kMaxRank dimensions.
  Status check_rank(int input, int rank, int64_t item = kNotInList) const;

  // Checks shared by operators. Inputs are given by their index in the declaration.
  Status floating(int input) const;  // one of the four floating dtypes
  Status same_dtype(int input, int like) const;
  Status same_dtype_or_f32(int input, int like) const;
  Status same_as(int input, int like);      // dtype and shape; refines like's shape
  Status one_element(int input, int like);  // a scalar input: one element, of like's dtype or float32
  Status has_one_element(int input, std::string_view expected);
  Status has_rows(int input);  // floating, with at least one dimension
  // A parameter, if present: [columns], of like's dtype, or float32 with a 16-bit dtype.
  Status per_column(int input, int like);
  // A saved statistic: like's shape without the last dimension, compute dtype.
  Status per_row(int input, int like);

  // False if two shapes are known to differ. May refine a.
  bool same_shape(Shape& a, const Shape& b);

  // List checks: as many tensors as in `like`, with the same shapes; one element per tensor.
  Status same_shapes(int input, int like);
  Status one_element_each(int input, int like);

  // fusedops.<op>: <input> must <expected>; got <got>. For a tensor of a list: <input>[<item>] must ...
  Status must(int input, std::string_view expected, std::string_view got, int64_t item = kNotInList) const;
  Shape row_shape(int like, DType dtype) const;  // like's shape without the last dimension
  // The shape of an input's gradient: empty if not wanted or the input is absent, which has like's dtype then.
  Shape gradient(int input, bool is_wanted, int like) const;

  std::string show(const Shape& shape) const;  // [2, ?, 8]
  std::string show(Dim dim) const;

  const char* input_name(int input) const;

 private:
  Status check_attributes() const;  // their choices and bounds
  Status summarize(int list);       // sets the list's dtype, which all its tensors must have
  Status same_count(int input, int like) const;
};

}  // namespace fusedops
