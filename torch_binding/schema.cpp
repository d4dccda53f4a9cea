#include "schema.h"

#include <algorithm>

namespace fusedops::torch_binding {
namespace {

// Each mutated input has its own alias letter, by its place among the inputs.
std::string input(const Input& input, size_t place, bool is_default_none) {
  const std::string tensor = input.updated ? std::string("Tensor(") + static_cast<char>('a' + place) + "!)" : "Tensor";
  switch (input.kind) {
    case Kind::tensor:
      return tensor + " " + input.name;
    case Kind::optional:
      return tensor + "? " + input.name + (is_default_none ? "=None" : "");
    case Kind::scalar:
      return tensor + "? " + input.name;
    case Kind::list:
      return tensor + "[] " + input.name;
  }
  return "";
}
static_assert(kMaxInputs <= 26);

// True if only optional inputs follow: as in Python, others cannot have a default.
bool has_default(const Operator& op, size_t input) {
  return std::all_of(op.inputs.begin() + input, op.inputs.end(),
                     [](const Input& declared) { return declared.kind == Kind::optional; });
}

std::string attribute(const Attribute& attribute) {
  static constexpr const char* kTypes[] = {"float", "int", "bool", "str", "float[]"};
  const char* quote = attribute.type == Type::string ? "\"" : "";
  std::string value = attribute.value;
  if (attribute.type == Type::boolean) value = value == "true" ? "True" : "False";
  return std::string(kTypes[static_cast<int>(attribute.type)]) + " " + attribute.name + "=" + quote + value + quote;
}

void append(std::string& list, const std::string& item) { list += (list.empty() ? "" : ", ") + item; }

}  // namespace

std::string schema(const Operator& op) {
  std::string arguments, results;
  for (size_t i = 0; i < op.inputs.size(); ++i) append(arguments, input(op.inputs[i], i, has_default(op, i)));
  for (const Input& declared : op.inputs)
    if (declared.kind == Kind::scalar) append(arguments, std::string("float ") + declared.name + "_value=0.0");
  for (const Attribute& declared : op.attributes) append(arguments, attribute(declared));
  for (const Output& declared : op.outputs) append(results, std::string("Tensor ") + declared.name);
  return std::string(op.name) + "(" + arguments + ") -> (" + results + ")";
}

}  // namespace fusedops::torch_binding
