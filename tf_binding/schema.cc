// Registers an OpDef for every declared operator.
#include "names.h"
#include "shapes.h"
#include "tensorflow/core/framework/op.h"

namespace fusedops::tf_binding {

bool has_own_dtype(const Operator& op, const Output& output) {
  const std::string_view dtype = output.dtype;
  for (const Input& input : op.inputs)
    if (dtype == input.name) return input.kind == Kind::optional;
  return true;
}

namespace {

void add_input(const Input& input, tensorflow::OpDefBuilder& builder) {
  const std::string name = input.name, type = type_attribute(input.name), count = count_attribute(input.name);
  if (input.kind == Kind::optional) {
    builder.Attr(type + ": type = DT_FLOAT").Attr(count + ": int >= 0").Input(name + ": " + count + " * " + type);
  } else {
    builder.Attr(type + ": type").Input(name + ": " + type);
  }
}

void add_output(const Operator& op, const Output& output, tensorflow::OpDefBuilder& builder) {
  const std::string type = type_attribute(op, output);
  if (has_own_dtype(op, output)) builder.Attr(type + ": type = DT_FLOAT");
  builder.Output(std::string(output.name) + ": " + type);
}

// Doubles travel as text: TensorFlow's float attributes have 32 bits.
void add_attribute(const Attribute& attribute, tensorflow::OpDefBuilder& builder) {
  static constexpr const char* kTypes[] = {"string", "int", "bool", "string", "string"};
  const std::string type = kTypes[static_cast<int>(attribute.type)], quote = type == "string" ? "'" : "";
  builder.Attr(std::string(attribute.name) + ": " + type + " = " + quote + attribute.value + quote);
}

// The order of the attributes is the order of the parameters in the generated Python function: the declared ones, then
// the dtypes of outputs.
void add_schema(const Operator& op, tensorflow::OpDefBuilder& builder) {
  for (const Input& input : op.inputs) add_input(input, builder);
  for (const Attribute& attribute : op.attributes) add_attribute(attribute, builder);
  for (const Output& output : op.outputs) add_output(op, output, builder);
  builder.SetShapeFn([&op](tensorflow::shape_inference::InferenceContext* graph) { return infer_shapes(op, graph); });
}

[[maybe_unused]] const bool registered = [] {
  for (const Operator* op : operators())
    tensorflow::OpRegistry::Global()->Register([op](tensorflow::OpRegistrationData* data) {
      tensorflow::OpDefBuilder builder(type_name(op->name));
      add_schema(*op, builder);
      return builder.Finalize(data);
    });
  return true;
}();

}  // namespace
}  // namespace fusedops::tf_binding
