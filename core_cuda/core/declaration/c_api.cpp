// C API over declarations and shape rules. The Python package calls it through ctypes.
//
// Returned texts last until the thread's next call.
#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/declaration/check.h"
#include "core/declaration/library.h"
#include "core/declaration/names.h"
#include "core/declaration/numbers.h"
#include "core/declaration/operator.h"
#include "core/declaration/thread_local_text.h"

namespace fusedops {
namespace {

// For a symbol s, s - kHalfSymbol is its half, and s - 2 * kHalfSymbol its number of Rule::kBlock blocks; they combine.
constexpr Dim kHalfSymbol = Dim(1) << 40;

std::string quoted(std::string_view text) { return '"' + std::string(text) + '"'; }

std::string text(const char* name) { return name ? quoted(name) : "null"; }

template <class Items, class F>
std::string json_list(const Items& items, F&& item_text) {
  std::string text = "[";
  for (const auto& item : items) text += (text.size() > 1 ? ", " : "") + item_text(item);
  return text + "]";
}

// Bounds are JSON strings, since JSON has no infinity.
std::string json(const Bounds& bounds) {
  return "{\"least\": " + quoted(spelled(bounds.least)) + ", \"most\": " + quoted(spelled(bounds.most)) +
         ", \"is_open\": " + (bounds.is_open ? "true" : "false") + "}";
}

std::string json(const Operator& op) {
  static constexpr const char* kKinds[] = {"tensor", "optional", "scalar", "list"};
  static constexpr const char* kTypes[] = {"float", "int", "bool", "str", "floats"};
  const auto input = [](const Input& i) {
    return "{\"name\": " + quoted(i.name) + ", \"kind\": " + quoted(kKinds[int(i.kind)]) +
           ", \"in_rows\": " + (has_rows(i.layout) ? "true" : "false") +
           ", \"parameter\": " + (i.parameter ? "true" : "false") + ", \"updated\": " + (i.updated ? "true" : "false") +
           ", \"only_for\": " + text(i.only_for) + "}";
  };
  const auto output = [](const Output& o) {
    return "{\"name\": " + quoted(o.name) + ", \"dtype\": " + quoted(o.dtype) +
           ", \"saved\": " + (o.saved ? "true" : "false") + ", \"padded\": " + (o.padded ? "true" : "false") +
           ", \"overwrites\": " + text(o.overwrites) + "}";
  };
  const auto attribute = [](const Attribute& a) {
    return "{\"name\": " + quoted(a.name) + ", \"type\": " + quoted(kTypes[int(a.type)]) +
           ", \"default\": " + quoted(a.value) +
           ", \"choices\": " + json_list(a.choices, [](std::string_view choice) { return quoted(choice); }) +
           ", \"bounds\": " + (a.bounds ? json(*a.bounds) : "null") + "}";
  };
  const auto axes = [](const Axes& a) {
    return "{\"tensors\": " + quoted(a.tensors) + ", \"when\": " + quoted(a.when) + "}";
  };
  const auto gradient = [](const Step::Gradient& g) {
    return "{\"input\": " + quoted(g.input) + ", \"source\": " + quoted(g.source) + "}";
  };
  const auto passed = [](const Step::Passed& p) {
    return "{\"attribute\": " + quoted(p.attribute) + ", \"source\": " + quoted(p.source) +
           ", \"negated\": " + (p.negated ? "true" : "false") + "}";
  };
  const auto step = [&](const Step& s) {
    return "{\"op\": " + text(s.op) + ", \"inputs\": " + json_list(s.inputs, text) +
           ", \"gradients\": " + json_list(s.gradients, gradient) + ", \"if_wanted\": " + text(s.if_wanted) +
           ", \"if_given\": " + text(s.if_given) + ", \"attributes\": " + json_list(s.attributes, passed) + "}";
  };
  return "{\"name\": " + quoted(op.name) + ", \"function\": " + quoted(public_name(op)) +
         ", \"type\": " + quoted(type_name(op.name)) + ", \"inputs\": " + json_list(op.inputs, input) +
         ", \"outputs\": " + json_list(op.outputs, output) +
         ", \"attributes\": " + json_list(op.attributes, attribute) + ", \"axes\": " + json_list(op.axes, axes) +
         ", \"derivative\": " + json_list(op.derivative, step) + ", \"autocast\": " + (op.autocast ? "true" : "false") +
         ", \"differentiable\": " + (is_differentiable(op) ? "true" : "false") + "}";
}

std::string json(std::span<const Operator* const> ops) {
  return json_list(ops, [](const Operator* op) { return json(*op); });
}

std::string described() {
  const auto name = [](const DTypeInfo& dtype) { return quoted(dtype.name); };
  return "{\"dtypes\": " + json_list(std::span(kDTypes).first(size_t(DType::other)), name) +
         ", \"half_symbol\": " + std::to_string(kHalfSymbol) + ", \"block\": " + std::to_string(Rule::kBlock) +
         ", \"padded\": " + std::to_string(kPadded) + ", \"operators\": " + json(operators()) + "}";
}

Status check_abi(const Library& library) {
  if (library.abi == Abi()) return {};
  return Status::error(
      "fusedops: the library of operators was compiled for another version of fusedops; compile it again");
}

std::span<const Operator* const> operators_of(const Library& library) {
  return {library.operators, static_cast<size_t>(library.count)};
}

// Dimensions that a tracer knows only as symbols. Every equality that a check requires is returned to the tracer.
class SymbolicRule : public Rule {
 public:
  using Rule::Rule;

  // Reads one tensor and returns the position after it.
  const int64_t* read(const int64_t* words, Shape* shape) const {
    shape->dtype = static_cast<DType>(*words++);
    shape->rank = static_cast<int>(*words++);
    shape->ranked = shape->rank >= 0;
    if (!shape->ranked) return words;
    std::copy_n(words, std::min(shape->rank, kMaxRank), shape->dims);
    return words + shape->rank;
  }
  void read(int input, int64_t item, Shape* shape) override { read(items[input][static_cast<size_t>(item)], shape); }

  std::vector<const int64_t*> items[kMaxInputs];  // the tensors of lists

  bool same(Dim& a, Dim b) override {
    if (a == b) return true;
    if (a >= 0 && b >= 0) return false;
    equalities.emplace_back(a, b);
    if (a < 0 && b >= 0) a = b;
    return true;
  }
  Dim half(Dim dim) override { return dim < 0 ? dim - kHalfSymbol : Rule::half(dim); }
  Dim blocks(Dim dim) override { return dim < 0 ? dim - 2 * kHalfSymbol : Rule::blocks(dim); }

  std::vector<std::pair<Dim, Dim>> equalities;
};

}  // namespace
}  // namespace fusedops

// The names of dtypes in the order of DType, the constants of symbols and the table, as JSON.
extern "C" FUSEDOPS_EXPORT const char* fusedops_describe() {
  static const std::string text = fusedops::described();
  return text.c_str();
}

// The operators of the table from index `first` on, as JSON.
extern "C" FUSEDOPS_EXPORT const char* fusedops_describe_operators(int64_t first) {
  return fusedops::thread_local_text(fusedops::json(fusedops::operators().subspan(static_cast<size_t>(first))));
}

// The operators of a library as a JSON list, or, if they cannot be added, a sentence that says why. `library` is the
// result of its `fusedops_library`.
extern "C" FUSEDOPS_EXPORT const char* fusedops_describe_library(const void* library) {
  using namespace fusedops;
  const auto& described = *static_cast<const Library*>(library);
  Status status = check_abi(described);
  if (status.ok()) status = check_operators(operators_of(described));
  return thread_local_text(status.ok() ? json(operators_of(described)) : status.sentence());
}

// Adds the operators of a library. Returns null or an error sentence.
extern "C" FUSEDOPS_EXPORT const char* fusedops_add_operators(const void* library) {
  using namespace fusedops;
  const auto& added = *static_cast<const Library*>(library);
  Status status = check_abi(added);
  if (status.ok()) status = add_operators(operators_of(added));
  return status.ok() ? nullptr : thread_local_text(status.sentence());
}

// Runs a shape rule. `inputs` holds the number of tensors of each input, and for each tensor its dtype, rank (negative:
// unknown) and dims (negative: a symbol). `attributes` are texts, in the order of the declaration. `result` receives
// the number of equalities and their pairs, then for each output its dtype, rank and dims, with symbols encoded as at
// kHalfSymbol. Returns null or an error sentence.
extern "C" FUSEDOPS_EXPORT const char* fusedops_infer(const char* name, const int64_t* inputs,
                                                      const char* const* attributes, int64_t* result,
                                                      int64_t result_capacity) {
  using namespace fusedops;
  const Operator* op = find_operator(name);
  if (!op) return thread_local_text(std::string("fusedops: no operator is named ") + name);
  Value values[kMaxAttributes];
  for (size_t i = 0; i < op->attributes.size(); ++i)
    if (!parse(op->attributes[i].type, attributes[i], &values[i]))
      return thread_local_text(attribute_sentence(*op, static_cast<int>(i), attributes[i]));

  SymbolicRule rule(*op, values);
  for (size_t i = 0; i < op->inputs.size(); ++i) {
    const int64_t count = *inputs++;
    const bool is_list = op->inputs[i].kind == Kind::list;
    rule.inputs[i].present = count != 0;
    if (is_list) rule.counts[i] = count;
    for (int64_t item = 0; item < count; ++item) {
      Shape& shape = rule.inputs[i];
      rule.items[i].push_back(inputs);
      inputs = rule.read(inputs, &shape);
      const Status status = rule.check_rank(static_cast<int>(i), shape.rank, is_list ? item : Rule::kNotInList);
      if (!status.ok()) return thread_local_text(status.sentence());
    }
  }
  if (Status status = rule.infer(); !status.ok()) return thread_local_text(status.sentence());

  std::vector<int64_t> answer{static_cast<int64_t>(rule.equalities.size())};
  for (const auto& [a, b] : rule.equalities) answer.insert(answer.end(), {a, b});
  for (size_t i = 0; i < op->outputs.size(); ++i) {
    const Shape& shape = rule.outputs[i];
    const int rank = shape.ranked ? shape.rank : -1;
    answer.insert(answer.end(), {static_cast<int64_t>(shape.dtype), rank});
    answer.insert(answer.end(), shape.dims, shape.dims + std::max(rank, 0));
  }
  if (static_cast<int64_t>(answer.size()) > result_capacity)
    return thread_local_text("fusedops: too many dimensions to infer");
  std::copy(answer.begin(), answer.end(), result);
  return nullptr;
}
