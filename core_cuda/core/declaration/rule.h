// The shape rule of an operator: its checks, its error sentences and the shapes it returns, written once. Each
// framework runs it over its own idea of a dimension (a number, a symbol being traced, an unknown of a graph).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/declaration/attributes.h"
#include "core/declaration/dtype.h"
#include "core/declaration/signature.h"
#include "core/declaration/status.h"
#include "core/declaration/view.h"

namespace fusedops {

struct Operator;

// A dimension: >= 0 is a known size; < 0 is a symbol that only the adaptor understands.
using Dim = int64_t;

struct Shape {
  bool present = false;  // false: an absent optional, or a scalar passed as a number
  DType dtype = DType::other;
  bool ranked = true;  // false: a graph that does not know the rank; `rank` and `dims` are then meaningless
  int rank = 0;
  Dim dims[kMaxRank];

  Shape() {}  // leaves dims uninitialised: a rule is run at every eager call
  Shape(const Shape& other) { *this = other; }
  Shape& operator=(const Shape& other);

  static Shape of(DType dtype, std::initializer_list<Dim> dims = {});
};

class Rule {
 public:
  static constexpr int64_t kNotInList = -1;

  explicit Rule(const Operator& op, Attributes attributes) : op(op), attributes(attributes) {}
  virtual ~Rule() = default;

  // Whether two dimensions can be equal: false only if they are known to differ. May refine a to what both must be.
  virtual bool same(Dim& a, Dim b) { return a == b; }

  // Whether two dimensions broadcast, as NumPy's do; a becomes what they broadcast to.
  virtual bool broadcast(Dim& a, Dim b);

  virtual Dim half(Dim dim) { return dim / 2; }  // of an even dimension

  // How many blocks of kBlock elements cover a dimension.
  static constexpr Dim kBlock = 128;
  virtual Dim blocks(Dim dim) { return (dim + kBlock - 1) / kBlock; }

  // A tensor of a list. A list may have thousands: they are asked for one at a time, and never kept.
  virtual void read(int input, int64_t item, Shape* shape);

  // What an adaptor calls once the inputs are filled in: all checks, and the outputs.
  Status infer();

  const Operator& op;
  const Attributes attributes;
  Shape inputs[kMaxInputs];         // of a list: its dtype, without a rank; infer() fills it in
  int64_t counts[kMaxInputs] = {};  // of a list: how many tensors, which the adaptor fills in
  Shape outputs[kMaxOutputs];

  // What an adaptor asks before it fills in a shape: whether there is room for its dimensions.
  Status check_rank(int input, int rank, int64_t item = kNotInList) const;

  // The checks that operators share. Inputs are given by their position in the declaration.
  Status floating(int input) const;  // one of the four floating dtypes
  Status same_dtype(int input, int like) const;
  Status same_dtype_or_f32(int input, int like) const;
  Status same_as(int input, int like);      // dtype and shape; refines what is known of like's shape
  Status one_element(int input, int like);  // a scalar input: one element, of like's dtype or float32
  Status has_one_element(int input, std::string_view expected);
  Status has_rows(int input);  // floating, with at least one dimension
  // A parameter, if present: [columns], of like's dtype or float32 beside 16 bits.
  Status per_column(int input, int like);
  // A saved statistic: like's shape without the last dimension, compute dtype.
  Status per_row(int input, int like);

  // False if two shapes are known to differ. Refines what is known of a.
  bool same_shape(Shape& a, const Shape& b);

  // Of lists: as many tensors as in another, each of the shape of the other's in its place; or one element each.
  Status same_shapes(int input, int like);
  Status one_element_each(int input, int like);

  // fusedops.<op>: <input> must <expected>; got <got>. Of a tensor in a list: <input>[<item>] must ...
  Status must(int input, std::string_view expected, std::string_view got, int64_t item = kNotInList) const;
  Shape row_shape(int like, DType dtype) const;  // like's shape without the last dimension
  // The gradient of an input: empty if it is not wanted or the input is absent, whose dtype is like's then.
  Shape gradient(int input, bool is_wanted, int like) const;

  std::string show(const Shape& shape) const;  // [2, ?, 8]
  std::string show(Dim dim) const;

  const char* input_name(int input) const;

 private:
  Status check_attributes() const;  // their choices and bounds
  Status summarize(int list);       // its dtype, which all tensors must have
  Status same_count(int input, int like) const;
};

}  // namespace fusedops
