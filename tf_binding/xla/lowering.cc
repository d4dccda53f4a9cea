// Lowers each operator to one custom call of XLA, with the shapes of its own shape function.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "attributes.h"
#include "call.h"
#include "handler.h"
#include "registration.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/public/version.h"
#include "workspace.h"
#include "xla/ffi/api/api.h"
#include "xla/hlo/builder/xla_builder.h"

namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();  // TensorFlow's own; xla/ffi/ffi_api.h, which declares it, brings all of LLVM
}

namespace fusedops::tf_binding {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::XlaOpKernelContext;

// The attribute as text that parse() reads.
absl::Status read_text(const OpKernelConstruction& node, const Attribute& attribute, std::string* text) {
  switch (attribute.type) {
    case Type::i64: {
      int64_t number;
      TF_RETURN_IF_ERROR(node.GetAttr(attribute.name, &number));
      *text = std::to_string(number);
      return absl::OkStatus();
    }
    case Type::boolean: {
      bool flag;
      TF_RETURN_IF_ERROR(node.GetAttr(attribute.name, &flag));
      *text = flag ? "true" : "false";
      return absl::OkStatus();
    }
    default:
      return node.GetAttr(attribute.name, text);
  }
}

class Lowering : public tensorflow::XlaOpKernel {
 public:
  Lowering(const Operator& op, OpKernelConstruction* node) : XlaOpKernel(node), op_(op) {
    OP_REQUIRES_OK(node, tensorflow::OpRegistry::Global()->LookUp(type_string(), &registration_));
    OP_REQUIRES_OK(node, read_attributes(*node, op, values_));
    OP_REQUIRES_OK(node, read_node(*node));
  }

  void Compile(XlaOpKernelContext* context) override { OP_REQUIRES_OK(context, lower(context)); }

 private:
  // Writes the call's attributes as an MLIR dictionary, which XLA takes. MLIR escapes strings not quite like C. Where
  // the two differ, the text is not a valid attribute, and the shape function refuses it first.
  absl::Status read_node(const OpKernelConstruction& node) {
    for (size_t i = 0; i < op_.inputs.size(); ++i) {
      const Input& input = op_.inputs[i];
      counts_[i] = 1;  // the shape function refuses more for an optional input
      if (is_counted(input)) TF_RETURN_IF_ERROR(node.GetAttr(count_attribute(input.name), &counts_[i]));
      tensorflow::DataType dtype = tensorflow::DT_INVALID;
      if (input.updated) TF_RETURN_IF_ERROR(node.GetAttr(type_attribute(input.name), &dtype));
      variables_.insert(variables_.end(), static_cast<size_t>(counts_[i]), dtype);
    }
    std::string own;
    for (const Attribute& attribute : op_.attributes) {
      std::string text;
      TF_RETURN_IF_ERROR(read_text(node, attribute, &text));
      absl::StrAppend(&own, own.empty() ? "" : ", ", attribute.name, " = \"", absl::CEscape(text), "\"");
    }
    const auto counts = absl::StrJoin(absl::MakeSpan(counts_, op_.inputs.size()), ", ");
    dictionary_ = absl::StrCat("{", xla_binding::kOperator, " = \"", op_.name, "\", ", xla_binding::kCounts,
                               " = array<i64: ", counts, ">, ", xla_binding::kAttributes, " = {", own, "}}");
    return absl::OkStatus();
  }

  absl::Status lower(XlaOpKernelContext* context) {
    std::vector<xla::XlaOp> inputs;
    std::vector<xla::Shape> operands, results;
    TF_RETURN_IF_ERROR(read_operands(context, &inputs, &operands));
    TF_RETURN_IF_ERROR(infer(context, operands, &results));
    results.push_back(xla::ShapeUtil::MakeShape(xla::U8, {workspace(context, operands, results)}));

    // The new values of variables are results in the memory of the old ones.
    std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>> variables, aliases;
    for (int i = 0; i < context->num_inputs(); ++i) {
      if (!is_variable(i)) continue;
      const xla::ShapeIndex result = {static_cast<int64_t>(results.size())};
      variables.emplace_back(result, std::pair(int64_t{i}, xla::ShapeIndex()));
      results.push_back(operands[i]);
    }
    aliases = variables;
    for (size_t i = 0; i < op_.outputs.size(); ++i)
      if (const int operand = overwritten(op_.outputs[i], operands, results[i]); operand != kAbsent)
        aliases.emplace_back(xla::ShapeIndex{static_cast<int64_t>(i)}, std::pair(int64_t{operand}, xla::ShapeIndex()));
    const xla::XlaOp call =
        xla::CustomCallWithLayout(context->builder(), xla_binding::kTarget, inputs,
                                  xla::ShapeUtil::MakeTupleShape(results), operands, dictionary_,
                                  /*has_side_effect=*/false, aliases, nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
                                  xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
    for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, xla::GetTupleElement(call, i));
    for (const auto& [result, operand] : variables)
      TF_RETURN_IF_ERROR(context->AssignVariable(static_cast<int>(operand.first), variables_[operand.first],
                                                 xla::GetTupleElement(call, result[0])));
    return absl::OkStatus();
  }

  // The operand that an output may overwrite, or kAbsent.
  int overwritten(const Output& output, const std::vector<xla::Shape>& operands, const xla::Shape& result) const {
    if (!output.overwrites || xla::ShapeUtil::IsZeroElementArray(result)) return kAbsent;
    for (size_t i = 0, position = 0; i < op_.inputs.size(); position += static_cast<size_t>(counts_[i++]))
      if (op_.inputs[i].name == std::string_view(output.overwrites) && counts_[i] > 0)
        return xla::ShapeUtil::Equal(operands[position], result) ? static_cast<int>(position) : kAbsent;
    return kAbsent;
  }

  bool is_variable(int position) const { return variables_[position] != tensorflow::DT_INVALID; }

  absl::Status read_operands(XlaOpKernelContext* context, std::vector<xla::XlaOp>* inputs,
                             std::vector<xla::Shape>* operands) const {
    for (int i = 0; i < context->num_inputs(); ++i) {
      if (is_variable(i)) {
        TF_RETURN_IF_ERROR(context->ReadVariableInput(i, variables_[i], nullptr, &inputs->emplace_back()));
        TF_ASSIGN_OR_RETURN(operands->emplace_back(), context->builder()->GetShape(inputs->back()));
      } else {
        inputs->push_back(context->Input(i));
        TF_ASSIGN_OR_RETURN(operands->emplace_back(), context->InputXlaShape(i));
      }
      xla::Shape& operand = operands->back();
      // XLA passes such a tensor in a buffer of the largest size, and the kernel would read beyond the tensor.
      if (operand.is_dynamic())
        return absl::UnimplementedError(absl::StrCat(
            "fusedops.", public_name(op_),
            ": under XLA the shapes of inputs must not depend on the values of tensors; got ", operand.ToString(),
            ". Leave jit_compile off for what computes this shape, such as tf.boolean_mask"));
      xla::LayoutUtil::SetToDefaultLayout(&operand);
    }
    return absl::OkStatus();
  }

  // Repeats all checks and infers the outputs: when TensorFlow built the graph, less was known.
  absl::Status infer(XlaOpKernelContext* context, const std::vector<xla::Shape>& operands,
                     std::vector<xla::Shape>* results) const {
    using tensorflow::PartialTensorShape;
    using Values = std::vector<std::pair<PartialTensorShape, tensorflow::DataType>>;
    std::vector<PartialTensorShape> inputs;
    std::vector<std::unique_ptr<Values>> values(operands.size());  // of variables
    for (size_t i = 0; i < operands.size(); ++i) {
      const PartialTensorShape shape(operands[i].dimensions());
      const bool variable = is_variable(static_cast<int>(i));
      inputs.push_back(variable ? PartialTensorShape(absl::Span<const int64_t>()) : shape);
      if (variable) values[i] = std::make_unique<Values>(1, std::pair(shape, variables_[i]));
    }
    tensorflow::shape_inference::InferenceContext graph(TF_GRAPH_DEF_VERSION, tensorflow::AttrSlice(def()),
                                                        registration_->op_def, inputs, {}, {}, values);
    TF_RETURN_IF_ERROR(graph.construction_status());
    TF_RETURN_IF_ERROR(graph.Run(registration_->shape_inference_fn));
    for (int i = 0; i < context->num_outputs(); ++i) {
      tensorflow::TensorShapeProto proto;
      graph.ShapeHandleToProto(graph.output(i), &proto);
      tensorflow::TensorShape shape;
      TF_RETURN_IF_ERROR(tensorflow::TensorShape::BuildTensorShape(proto, &shape));
      TF_RETURN_IF_ERROR(TensorShapeToXLAShape(context->expected_output_dtype(i), shape, &results->emplace_back()));
    }
    return absl::OkStatus();
  }

  int64_t workspace(XlaOpKernelContext* context, const std::vector<xla::Shape>& operands,
                    const std::vector<xla::Shape>& results) const {
    const auto tensor = [](tensorflow::DataType dtype, const xla::Shape& shape) {
      return xla_binding::Tensor{core_dtype(dtype), {shape.dimensions().data(), shape.dimensions().size()}};
    };
    std::vector<xla_binding::Tensor> inputs, outputs;
    for (int i = 0; i < context->num_inputs(); ++i)
      inputs.push_back(tensor(is_variable(i) ? variables_[i] : context->input_type(i), operands[i]));
    for (int i = 0; i < context->num_outputs(); ++i)
      outputs.push_back(tensor(context->expected_output_dtype(i), results[i]));
    const bool cuda = context->compiler()->options().device_type == tensorflow::DEVICE_GPU_XLA_JIT;
    return xla_binding::workspace(op_, values_, cuda, {counts_, op_.inputs.size()}, inputs, outputs);
  }

  const Operator& op_;
  const tensorflow::OpRegistrationData* registration_ = nullptr;
  Value values_[kMaxAttributes];
  int64_t counts_[kMaxInputs] = {};
  std::vector<tensorflow::DataType> variables_;  // by operand: the dtype of a variable's value, or none
  std::string dictionary_;
};

// Registered as ordinary kernels of XLA's devices: REGISTER_XLA_OP fills a table that TensorFlow reads only once,
// usually before this library is loaded.
Status add(const Operator& op) {
  if (!tensorflow::OpRegistry::Global()->LookUp(type_name(op.name))) return {};  // TensorFlow has refused it
  for (const char* device : {tensorflow::DEVICE_CPU_XLA_JIT, tensorflow::DEVICE_GPU_XLA_JIT})
    register_kernel(op, device, [](const Operator& op, OpKernelConstruction* node) -> tensorflow::OpKernel* {
      return new Lowering(op, node);
    });
  return {};
}

const char* register_new() {
  static NewOperators operators;
  return operators.registered(add);
}

[[maybe_unused]] const bool registered = (register_new(), true);

XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), xla_binding::kTarget, "Host", fusedops_xla_on_host);
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), xla_binding::kTarget, "CUDA", fusedops_xla_on_cuda,
                         XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);

}  // namespace
}  // namespace fusedops::tf_binding

// As fusedops_tf_register_new, which must be called first.
extern "C" FUSEDOPS_EXPORT const char* fusedops_tf_register_new_for_xla() {
  return fusedops::tf_binding::register_new();
}
