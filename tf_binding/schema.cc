// The OpDef of a declared operator.
#include <algorithm>
#include <cctype>

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

// An argument of an operator that a process has added may have any name. TensorFlow takes lower-case names only, and
// generates Python code that reserves some. No caller uses the name made here.
std::string argument_name(const Operator& op, const char* name, size_t place) {
  if (std::ranges::any_of(built_in_operators(), [&](const Operator& other) { return &other == &op; })) return name;
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower + '_' + std::to_string(place);
}

namespace {

// Attributes are parameters of the generated Python function, under their own names.
bool is_good_attribute(std::string_view name) {
  static constexpr std::string_view kTaken[] = {"name", "ctx",   "tld",       "pywrap_tfe", "isinstance",    "len",
                                                "list", "tuple", "TypeError", "ValueError", "NotImplemented"};
  return std::find(std::begin(kTaken), std::end(kTaken), name) == std::end(kTaken);
}

void add_input(const Operator& op, size_t place, tensorflow::OpDefBuilder& builder) {
  const Input& input = op.inputs[place];
  const std::string name = argument_name(op, input.name, place);
  const std::string type = type_attribute(input.name), count = count_attribute(input.name);
  // A mutated input is a variable. Its handle does not tell the dtype: add_variable_type().
  if (!input.updated) builder.Attr(type + (is_counted(input) ? ": type = DT_FLOAT" : ": type"));
  if (is_counted(input)) builder.Attr(count + ": int >= 0");
  builder.Input(name + ": " + (is_counted(input) ? count + " * " : "") + (input.updated ? "resource" : type));
}

void add_variable_type(const Input& input, tensorflow::OpDefBuilder& builder) {
  if (input.updated) builder.Attr(type_attribute(input.name) + ": type = DT_FLOAT");
}

void add_output(const Operator& op, size_t place, tensorflow::OpDefBuilder& builder) {
  const Output& output = op.outputs[place];
  const std::string type = type_attribute(op, output);
  if (has_own_dtype(op, output)) builder.Attr(type + ": type = DT_FLOAT");
  builder.Output(argument_name(op, output.name, op.inputs.size() + place) + ": " + type);
}

// Doubles are passed as text: TensorFlow's float attributes have 32 bits.
void add_attribute(const Attribute& attribute, tensorflow::OpDefBuilder& builder) {
  static constexpr const char* kTypes[] = {"string", "int", "bool", "string", "string"};
  const std::string type = kTypes[static_cast<int>(attribute.type)], quote = type == "string" ? "'" : "";
  builder.Attr(std::string(attribute.name) + ": " + type + " = " + quote + attribute.value + quote);
}

// The order of the attributes is that of the parameters of the generated Python function: declared ones, dtypes of
// outputs, dtypes of variables.
absl::Status define(const Operator& op, tensorflow::OpRegistrationData* data) {
  tensorflow::OpDefBuilder builder(type_name(op.name));
  for (size_t i = 0; i < op.inputs.size(); ++i) add_input(op, i, builder);
  for (const Attribute& attribute : op.attributes) add_attribute(attribute, builder);
  for (size_t i = 0; i < op.outputs.size(); ++i) add_output(op, i, builder);
  for (const Input& input : op.inputs) add_variable_type(input, builder);
  for (const Input& input : op.inputs)
    if (input.updated) builder.SetIsStateful();  // TensorFlow must neither drop nor reorder its calls
  builder.SetShapeFn([&op](tensorflow::shape_inference::InferenceContext* graph) { return infer_shapes(op, graph); });
  TF_RETURN_IF_ERROR(builder.Finalize(data));
  return tensorflow::ValidateOpDef(data->op_def);
}

}  // namespace

// Checks the OpDef first: TensorFlow ends the process for a wrong one.
Status register_schema(const Operator& op) {
  for (const Attribute& attribute : op.attributes)
    if (!is_good_attribute(attribute.name))
      return Status::error("fusedops.", op.name, ": in TensorFlow, no attribute can be named ", attribute.name);
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
