#include "core/declaration/check.h"

#include <algorithm>
#include <cctype>
#include <cmath>

namespace fusedops {
namespace {

using Names = std::vector<std::string>;

// Reserved words of Python and of torch schemas.
constexpr std::string_view kReserved[] = {
    "False", "None",  "NoneType", "True",  "and",    "as",   "assert", "async",  "await",
    "break", "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",
    "for",   "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal",
    "not",   "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield",
};

// TensorFlow generates Python from an operator, and breaks lines before longer names where Python does not allow it.
constexpr size_t kLongestName = 48;

bool is_name(std::string_view text) {
  const auto in_word = [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); };
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) &&
         std::all_of(text.begin(), text.end(), in_word) &&
         std::find(std::begin(kReserved), std::end(kReserved), text) == std::end(kReserved);
}

template <class Items>
const auto* named(const Items& items, std::string_view name) {
  const auto* found = std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.name == name; });
  return found == items.end() ? nullptr : found;
}

class Check {
 public:
  Check(const Operator& op, std::span<const Operator* const> ops) : op_(op), ops_(ops) {}

  Status run() const {
    if (!op_.name || !is_name(op_.name))
      return Status::error("fusedops: an operator's name must be a name of letters, digits and underscores", "; got '",
                           op_.name ? op_.name : "", "'");
    if (!op_.rule || !op_.cpu) return error("it must have a rule and a CPU kernel");
    if (std::none_of(op_.inputs.begin(), op_.inputs.end(), is_always_given))
      return error("one of its inputs must be a tensor that is always given, or a list");
    if (op_.outputs.size() == 0 && std::none_of(op_.inputs.begin(), op_.inputs.end(), is_updated))
      return error("it must have an output, or update an input");
    for (const Input& input : op_.inputs)
      if (input.updated && !is_always_given(input))
        return error("to be updated, ", input.name, " must be a tensor that is always given, or a list");
    for (const Output& output : op_.outputs)
      if (output.overwrites && !is_overwritable(named(op_.inputs, output.overwrites)))
        return error(output.name, " may overwrite only an input that is a tensor, and that it does not update");
    if (!op_.derivative.empty() && !is_differentiable(op_))
      return error("with lists, inputs that it updates or results in 8 bits, it can have no derivative");
    FUSEDOPS_TRY(names());
    for (const Attribute& attribute : op_.attributes) FUSEDOPS_TRY(check(attribute));
    for (const Axes& axes : op_.axes) FUSEDOPS_TRY(check(axes));
    for (const Step& step : op_.derivative) FUSEDOPS_TRY(check(step));
    return {};
  }

 private:
  static bool is_always_given(const Input& input) { return input.kind == Kind::tensor || input.kind == Kind::list; }
  static bool is_updated(const Input& input) { return input.updated; }
  static bool is_overwritable(const Input* input) {
    return input && !input->updated && (input->kind == Kind::tensor || input->kind == Kind::optional);
  }

  template <class... Texts>
  Status error(const Texts&... texts) const {
    return Status::error("fusedops.", op_.name, ": ", texts...);
  }

  // Names are unique among inputs, attributes and, with a derivative, upstream gradients; and among the outputs.
  Status names() const {
    Names inputs{"wanted"}, outputs;  // "wanted" is an argument of gradient formulas
    for (const Input& input : op_.inputs) {
      inputs.push_back(input.name);
      if (input.kind == Kind::scalar) inputs.push_back(std::string(input.name) + "_value");
    }
    for (const Attribute& attribute : op_.attributes) inputs.push_back(attribute.name);
    for (const Output& output : op_.outputs) {
      outputs.push_back(output.name);
      if (!op_.derivative.empty()) outputs.push_back(std::string("d") + output.name);
    }
    Names all = inputs;
    all.insert(all.end(), outputs.begin(), outputs.end());
    std::sort(all.begin(), all.end());
    for (const std::string& name : all) {
      if (!is_name(name)) return error("'", name, "' must be a name of letters, digits and underscores");
      if (name.size() > kLongestName)
        return error("'", name, "' must have at most ", std::to_string(kLongestName), " characters");
    }
    const auto twice = std::adjacent_find(all.begin(), all.end());
    return twice == all.end() ? Status() : error(*twice, " must stand for one thing, and stands for two");
  }

  const Operator* find(std::string_view name) const {
    const auto found = std::find_if(ops_.begin(), ops_.end(), [&](const Operator* op) { return op->name == name; });
    return found == ops_.end() ? find_operator(name) : *found;
  }

  bool is_upstream(std::string_view name) const {
    return std::any_of(op_.outputs.begin(), op_.outputs.end(),
                       [&](const Output& output) { return !output.saved && std::string("d") + output.name == name; });
  }

  bool is_tensor(std::string_view name) const {
    return is_upstream(name) || named(op_.inputs, name) || named(op_.outputs, name);
  }

  // The default is copied verbatim into every language.
  Status check(const Attribute& attribute) const {
    const std::string_view text = attribute.value ? attribute.value : "";
    const bool plain = std::none_of(text.begin(), text.end(), [](char c) { return c == '"' || c == '\\' || c < ' '; });
    Value value;
    bool good = plain && parse(attribute.type, text, &value) && std::isfinite(value.f64);
    for (const double number : value.f64s) good = good && std::isfinite(number);
    if (attribute.bounds) {
      const auto is_within = [&](double number) { return attribute.bounds->contain(number); };
      const bool is_number = attribute.type == Type::f64 || attribute.type == Type::i64;
      if (is_number) good = good && is_within(attribute.type == Type::f64 ? value.f64 : double(value.i64));
      good = good && std::all_of(value.f64s.begin(), value.f64s.end(), is_within);
    }
    if (!attribute.choices.empty())
      good = good && std::find(attribute.choices.begin(), attribute.choices.end(), text) != attribute.choices.end();
    return good ? Status() : error("the default of ", attribute.name, " must be a value that it can have; got ", text);
  }

  // The notation within a term is checked by its parser: fusedops/axes.py.
  Status check(const Axes& axes) const {
    const std::string_view text = axes.tensors ? axes.tensors : "", arrow = "->";
    const size_t place = std::min(text.find(arrow), text.size());
    const auto terms = [](std::string_view side) {
      const bool is_empty = side.find_first_not_of(' ') == side.npos;
      return is_empty ? 0 : 1 + static_cast<size_t>(std::count(side.begin(), side.end(), ','));
    };
    const std::string_view results = text.substr(std::min(place + arrow.size(), text.size()));
    if (terms(text.substr(0, place)) != op_.inputs.size() || terms(results) != op_.outputs.size())
      return error("its axes must be those of ", std::to_string(op_.inputs.size()), " inputs and ",
                   std::to_string(op_.outputs.size()), " outputs; got '", text, "'");
    return {};
  }

  Status check(const Step& step) const {
    const Operator* called = step.op ? find(step.op) : nullptr;
    if (step.op && !called) return error("its derivative calls ", step.op, ", which is no operator");
    if (called && step.inputs.size() != called->inputs.size())
      return error("its derivative must give ", step.op, " ", std::to_string(called->inputs.size()), " inputs");
    for (const char* name : step.inputs)
      if (name && !is_tensor(name)) return unknown(name);
    for (const Attribute& own : op_.attributes)
      if (const auto* same = called ? named(called->attributes, own.name) : nullptr; same && same->type != own.type)
        return error(own.name, " must be of the type that it has in ", step.op);
    for (const auto& [attribute, source, negated] : step.attributes) {
      const auto* own = named(op_.attributes, source);
      const auto* passed = called ? named(called->attributes, attribute) : nullptr;
      if (!own) return unknown(source);
      if (!passed) return unknown(attribute);
      if (own->type != passed->type || (negated && own->type != Type::boolean))
        return error(source, " must be of the type that ", attribute, " has in ", step.op);
    }
    for (const auto& [input, source] : step.gradients) {
      if (!named(op_.inputs, input)) return unknown(input);
      if (called ? !named(called->outputs, source) : !is_upstream(source)) return unknown(source);
    }
    if (step.if_wanted && !named(op_.inputs, step.if_wanted)) return unknown(step.if_wanted);
    if (step.if_given && std::none_of(step.inputs.begin(), step.inputs.end(), [&](const char* name) {
          return name && name == std::string_view(step.if_given);
        }))
      return unknown(step.if_given);
    return {};
  }

  Status unknown(const char* name) const { return error("its derivative names ", name, ", which there is not"); }

  const Operator& op_;
  const std::span<const Operator* const> ops_;
};

}  // namespace

Status check_operators(std::span<const Operator* const> ops) {
  for (const Operator* op : ops) FUSEDOPS_TRY(Check(*op, ops).run());
  return {};
}

}  // namespace fusedops
