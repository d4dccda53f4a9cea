// The OpDef of a declared operator.
#include <algorithm>

#include "names.h"
#include "shapes.h"
#include "table.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def_util.h"

namespace fusedops::tf_binding {

bool has_own_dtype(const Operator& op, const Output& output) {
  const std::string_view dtype = output.dtype;
  for (const Input& input : op.inputs)
    if (dtype == input.name) return input.kind == Kind::optional;
  return true;
}

namespace {

// TensorFlow takes lower-case names only. Nobody calls an argument by what it is named there.
std::string argument_name(const char* name, const char* otherwise, size_t place) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto may_follow = [&](char c) { return is_lower(c) || (c >= '0' && c <= '9') || c == '_'; };
  const std::string_view text = name;
  if (!text.empty() && is_lower(text.front()) && std::all_of(text.begin(), text.end(), may_follow)) return name;
  return otherwise + std::to_string(place);
}

void add_input(const Operator& op, size_t place, tensorflow::OpDefBuilder& builder) {
  const Input& input = op.inputs[place];
  const std::string name = argument_name(input.name, "input_", place);
  const std::string type = type_attribute(input.name), count = count_attribute(input.name);
  if (input.kind == Kind::optional) {
    builder.Attr(type + ": type = DT_FLOAT").Attr(count + ": int >= 0").Input(name + ": " + count + " * " + type);
  } else {
    builder.Attr(type + ": type").Input(name + ": " + type);
  }
}

void add_output(const Operator& op, size_t place, tensorflow::OpDefBuilder& builder) {
  const Output& output = op.outputs[place];
  const std::string type = type_attribute(op, output);
  if (has_own_dtype(op, output)) builder.Attr(type + ": type = DT_FLOAT");
  builder.Output(argument_name(output.name, "output_", place) + ": " + type);
}

// Doubles travel as text: TensorFlow's float attributes have 32 bits.
void add_attribute(const Attribute& attribute, tensorflow::OpDefBuilder& builder) {
  static constexpr const char* kTypes[] = {"string", "int", "bool", "string", "string"};
  const std::string type = kTypes[static_cast<int>(attribute.type)], quote = type == "string" ? "'" : "";
  builder.Attr(std::string(attribute.name) + ": " + type + " = " + quote + attribute.value + quote);
}

// The order of the attributes is the order of the parameters in the generated Python function: the declared ones, then
// the dtypes of outputs.
absl::Status define(const Operator& op, tensorflow::OpRegistrationData* data) {
  tensorflow::OpDefBuilder builder(type_name(op.name));
  for (size_t i = 0; i < op.inputs.size(); ++i) add_input(op, i, builder);
  for (const Attribute& attribute : op.attributes) add_attribute(attribute, builder);
  for (size_t i = 0; i < op.outputs.size(); ++i) add_output(op, i, builder);
  builder.SetShapeFn([&op](tensorflow::shape_inference::InferenceContext* graph) { return infer_shapes(op, graph); });
  TF_RETURN_IF_ERROR(builder.Finalize(data));
  return tensorflow::ValidateOpDef(data->op_def);
}

}  // namespace

Status register_schema(const Operator& op) {
  // What TensorFlow is given must be right: it ends the process otherwise.
  tensorflow::OpRegistrationData made;
  if (const absl::Status status = define(op, &made); !status.ok())
    return Status::error("fusedops.", op.name, ": TensorFlow cannot have this operator: ", status.message());
  if (const auto* known = tensorflow::OpRegistry::Global()->LookUp(made.op_def.name())) {
    if (OpDefEqual(known->op_def, made.op_def)) return {};  // from a copy of this library
    return Status::error("fusedops.", op.name, ": TensorFlow has another operator named ", made.op_def.name());
  }
  tensorflow::OpRegistry::Global()->Register([made](tensorflow::OpRegistrationData* data) {
    *data = made;
    return absl::OkStatus();
  });
  return {};
}

const tensorflow::OpDef* registered_schema(const Operator& op) {
  tensorflow::OpRegistrationData made;
  if (!define(op, &made).ok()) return nullptr;
  const auto* known = tensorflow::OpRegistry::Global()->LookUp(made.op_def.name());
  return known && OpDefEqual(known->op_def, made.op_def) ? &known->op_def : nullptr;
}

}  // namespace fusedops::tf_binding
