#include "schema.h"

namespace fusedops::torch_binding {
namespace {

std::string input(const Input& input) {
  switch (input.kind) {
    case Kind::tensor:
      return std::string("Tensor ") + input.name;
    case Kind::optional:
      return std::string("Tensor? ") + input.name + "=None";
    case Kind::scalar:
      return std::string("Tensor? ") + input.name;
  }
  return "";
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

std::string schema(const Operator& op, const std::string& name) {
  std::string arguments, results;
  for (const Input& declared : op.inputs) append(arguments, input(declared));
  for (const Input& declared : op.inputs)
    if (declared.kind == Kind::scalar) append(arguments, std::string("float ") + declared.name + "_value=0.0");
  for (const Attribute& declared : op.attributes) append(arguments, attribute(declared));
  for (const Output& declared : op.outputs) append(results, std::string("Tensor ") + declared.name);
  return name + "(" + arguments + ") -> (" + results + ")";
}

}  // namespace fusedops::torch_binding
