// Inputs, outputs and attributes of an operator, by name. The signature is in the operator's header, so kernels and
// rules look up indices at compile time. An undeclared name or a wrong attribute type does not compile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/declaration/view.h"

namespace fusedops {

// Enough for the second derivative of an expression with eight inputs and four results.
inline constexpr int kMaxInputs = 24;
inline constexpr int kMaxOutputs = 12;
inline constexpr int kMaxAttributes = 12;

enum class Kind : uint8_t {
  tensor,
  optional,  // a tensor or nothing
  scalar,    // one element: a tensor on the device, or a host double if the framework can pass one
  list,      // any number of tensors of one dtype; the first input must not be an empty list
};

struct Input {
  const char* name = nullptr;
  Kind kind = Kind::tensor;
  Layout layout = Layout::contiguous;
  bool parameter = false;  // shared by all rows, such as a weight: vmap cannot fold a dimension of it into the rows
  bool updated = false;    // mutated by the call: a tensor or a list, without a gradient
  const char* only_for = nullptr;  // for an optional input of a backward operator: the only output that reads it
};

// A tensor of rows with any stride between them.
constexpr Input in_rows(const char* name) { return {.name = name, .layout = Layout::rows}; }

// An optional vector shared by all rows, such as a bias.
constexpr Input optional_parameter(const char* name) {
  return {.name = name, .kind = Kind::optional, .parameter = true};
}

struct Output {
  const char* name = nullptr;
  // The dtype of the output, one of:
  //   an input's name
  //   "compute(name)": float64 for float64, else float32
  //   "common()": the 16-bit dtype among the inputs, if there is one, else that of the first floating input
  //   the name of a string attribute that holds a dtype
  const char* dtype = nullptr;
  bool saved = false;  // saved for the backward and hidden by the public function
  // Rows are padded_row() apart on a GPU, if the framework's tensors have strides. For operands of products, whose fast
  // kernels need rows aligned to 16 bytes.
  bool padded = false;
  // An input that the output may overwrite, if it has the output's shape and nothing else needs it. XLA then gives both
  // one memory. The kernel finishes all other reads of the input before it writes the output element by element.
  const char* overwrites = nullptr;
};

enum class Type : uint8_t { f64, i64, boolean, string, f64s };

// The C++ type in which an attribute is read.
template <class V>
inline constexpr Type kTypeOf = Type();
template <>
inline constexpr Type kTypeOf<double> = Type::f64;
template <>
inline constexpr Type kTypeOf<int64_t> = Type::i64;
template <>
inline constexpr Type kTypeOf<bool> = Type::boolean;
template <>
inline constexpr Type kTypeOf<std::string> = Type::string;
template <>
inline constexpr Type kTypeOf<std::vector<double>> = Type::f64s;

// The range of a number. NaN is in no range.
struct Bounds {
  double least, most;
  bool is_open = false;  // true: `most` itself is out of range

  constexpr bool contain(double x) const { return least <= x && (is_open ? x < most : x <= most); }
};

inline constexpr double kLargestFinite = std::numeric_limits<double>::max();
inline constexpr Bounds kFinite{-kLargestFinite, kLargestFinite};
inline constexpr Bounds kFiniteNotNegative{0, kLargestFinite};
inline constexpr Bounds kFinitePositive{std::numeric_limits<double>::min(), kLargestFinite};
inline constexpr Bounds kNotNegative{0, std::numeric_limits<double>::infinity()};
inline constexpr Bounds kUnitInterval{0, 1};
inline constexpr Bounds kBelowOne{0, 1, /*is_open=*/true};

struct Attribute {
  const char* name = nullptr;
  Type type = Type::f64;
  const char* value = nullptr;                     // the default, as parse() reads it
  std::span<const std::string_view> choices = {};  // the allowed strings; empty: any
  std::optional<Bounds> bounds = {};               // for a number, or each number of a list; none: any number
};

// The axes of each input and output, such as "...k, kn^transpose_weight, n/k -> ...n/k". A call can be computed in
// parts along an axis: each part gets its part of the inputs that have the axis, and the results that have it are
// joined.
//
//   k             an axis; calls can be divided along it
//   C             an axis along which they cannot: every element of a result depends on all of it
//   ...           any number of leading axes, along which calls can be divided
//   c/...         a tensor with the axis c, which is a sum over the axes behind the slash: a result of a part is one of
//                 its terms, and an input is given to one part, with zeros in the others
//   1             a tensor of one element
//   1/...:count   a mean over the axes behind the slash, weighted by another output
//   ...k:count    beside such a mean: a part of its gradient, to be multiplied by the part's fraction of the weight
//   c/...|sum     a sum, unless this input is given and not empty: it is the sum then
//   ~...TC        broadcast to these axes, as NumPy does: leading ones may be missing, and others have size 1
//   kn^transpose  the last two axes are swapped if this attribute is true
//   ; v@a/b       at the end: in a part of a call along v, attribute a is the offset of the part along v, and
//                 attribute b is the size of the whole
//   ; seed@...C   at the end: the input `seed`, if it is given, numbers the elements of a tensor with these axes. In a
//                 part of a call it has three further numbers: the places of the part's elements, Runs of philox.h
//
// A result that lacks an axis, and is no sum over it, is the same in all parts. Tensors may have different sizes along
// an axis, as the heads of queries and keys: each part gets the same fraction then.
struct Axes {
  const char* tensors = nullptr;
  // Conditions on the call, separated by spaces: "attribute=value", "attribute!=value", "input" (given), "!input"
  // (absent). The first declaration whose conditions hold applies. Without one, the call cannot be divided.
  const char* when = "";
};

// A constexpr vector of bounded capacity.
template <class Item, size_t kCapacity>
class ShortList {
 public:
  constexpr ShortList() = default;
  constexpr ShortList(std::initializer_list<Item> items) : size_(items.size()) {
    std::copy(items.begin(), items.end(), items_);
  }

  constexpr void add(const Item& item) { items_[size_++] = item; }

  // These items, then others.
  constexpr ShortList with(const ShortList& more) const {
    ShortList joined = *this;
    for (const Item& item : more) joined.add(item);
    return joined;
  }

  constexpr size_t size() const { return size_; }
  constexpr const Item* begin() const { return items_; }
  constexpr const Item* end() const { return items_ + size_; }
  constexpr const Item& operator[](size_t i) const { return items_[i]; }

 private:
  Item items_[kCapacity];
  size_t size_ = 0;
};

using InputList = ShortList<Input, kMaxInputs>;
using AttributeList = ShortList<Attribute, kMaxAttributes>;
using AxesList = ShortList<Axes, 6>;

// Options, then booleans with one default. A backward operator has one for each gradient that may not be needed.
constexpr AttributeList with_flags(AttributeList options, std::initializer_list<const char*> names, const char* value) {
  for (const char* name : names) options.add({name, Type::boolean, value});
  return options;
}
constexpr AttributeList with_needs(const AttributeList& options, std::initializer_list<const char*> names) {
  return with_flags(options, names, "true");
}

// A name as a template argument.
template <size_t kSize>
struct Name {
  consteval Name(const char (&name)[kSize]) { std::copy_n(name, kSize, text); }

  char text[kSize];
};

// The index of an argument that an operator does not have.
inline constexpr int kAbsent = -1;

// The index of an attribute with values of type V.
template <class V>
struct AttributeIndex {
  int index = kAbsent;
};

struct Signature {
  const char* name = nullptr;
  InputList inputs = {};
  ShortList<Output, kMaxOutputs> outputs = {};
  AttributeList attributes = {};
  AxesList axes = {};
  bool autocast = false;           // computes in the autocast dtype where PyTorch has one
  const char* function = nullptr;  // the public function that calls it, if that has another name
};

// The name in errors, which users read: that of the public function.
constexpr const char* public_name(const Signature& op) { return op.function ? op.function : op.name; }

// True if the operator mutates inputs or takes lists. Such an operator is not differentiable and not mapped over rows.
inline bool has_effects_or_lists(const Signature& op) {
  return std::any_of(op.inputs.begin(), op.inputs.end(),
                     [](const Input& input) { return input.updated || input.kind == Kind::list; });
}

// The index of a named item, or kAbsent. Not members: in templates, GCC 11 does not call consteval members.
template <class Items>
consteval int find(const Items& items, std::string_view name) {
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].name == name) return static_cast<int>(i);
  return kAbsent;
}

consteval int find_input(const Signature& op, std::string_view name) { return find(op.inputs, name); }
consteval int find_output(const Signature& op, std::string_view name) { return find(op.outputs, name); }

template <class V>
consteval AttributeIndex<V> find_attribute(const Signature& op, std::string_view name) {
  const int index = find(op.attributes, name);
  if (index != kAbsent && op.attributes[index].type != kTypeOf<V>) throw "the attribute is declared with another type";
  return {index};
}

consteval int declared(int index) {
  if (index == kAbsent) throw "the operator declares no such name";
  return index;
}

consteval int input_of(const Signature& op, std::string_view name) { return declared(find_input(op, name)); }
consteval int output_of(const Signature& op, std::string_view name) { return declared(find_output(op, name)); }

template <class V>
consteval AttributeIndex<V> attribute_of(const Signature& op, std::string_view name) {
  return {declared(find_attribute<V>(op, name).index)};
}

// For code that serves several operators: a signature with names not among the listed indices does not compile.
consteval void has_only(const Signature& op, std::initializer_list<int> inputs, std::initializer_list<int> outputs,
                        std::initializer_list<int> attributes) {
  const auto all_found = [](const auto& declared, std::initializer_list<int> indices) {
    size_t count = 0;
    for (const int index : indices) count += index != kAbsent;
    return count == declared.size();
  };
  if (!all_found(op.inputs, inputs) || !all_found(op.outputs, outputs) || !all_found(op.attributes, attributes))
    throw "the operator declares a name that is not known here";
}

}  // namespace fusedops
