// Reads the attributes of a node, for shape functions in graphs and for constructors of kernels.
#pragma once

#include <algorithm>
#include <string>

#include "names.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/lib/core/errors.h"

namespace fusedops::tf_binding {

inline DType core_dtype(tensorflow::DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_DOUBLE:
      return DType::f64;
    case tensorflow::DT_FLOAT:
      return DType::f32;
    case tensorflow::DT_HALF:
      return DType::f16;
    case tensorflow::DT_BFLOAT16:
      return DType::bf16;
    case tensorflow::DT_BOOL:
      return DType::boolean;
    case tensorflow::DT_UINT8:
      return DType::u8;
    case tensorflow::DT_INT8:
      return DType::i8;
    case tensorflow::DT_INT16:
      return DType::i16;
    case tensorflow::DT_INT32:
      return DType::i32;
    case tensorflow::DT_INT64:
      return DType::i64;
    case tensorflow::DT_COMPLEX64:
      return DType::c64;
    case tensorflow::DT_COMPLEX128:
      return DType::c128;
    case tensorflow::DT_FLOAT8_E4M3FN:
      return DType::f8_e4m3fn;
    case tensorflow::DT_FLOAT8_E5M2:
      return DType::f8_e5m2;
    default:
      return DType::other;
  }
}

inline absl::Status invalid(const Status& status) { return absl::InvalidArgumentError(status.sentence()); }

template <class Node>
absl::Status read_attribute(const Node& node, const Operator& op, int index, Value* value) {
  const Attribute& attribute = op.attributes[index];
  switch (attribute.type) {
    case Type::i64:
      return node.GetAttr(attribute.name, &value->i64);
    case Type::boolean: {
      bool flag = false;
      TF_RETURN_IF_ERROR(node.GetAttr(attribute.name, &flag));
      value->i64 = flag;
      return absl::OkStatus();
    }
    default: {
      std::string text;
      TF_RETURN_IF_ERROR(node.GetAttr(attribute.name, &text));
      if (parse(attribute.type, text, value)) return absl::OkStatus();
      return absl::InvalidArgumentError(attribute_sentence(op, index, text));
    }
  }
}

// `values` has room for kMaxAttributes.
template <class Node>
absl::Status read_attributes(const Node& node, const Operator& op, Value* values) {
  for (size_t i = 0; i < op.attributes.size(); ++i)
    TF_RETURN_IF_ERROR(read_attribute(node, op, static_cast<int>(i), &values[i]));
  return absl::OkStatus();
}

// The number of tensors of an input: one, or none for an absent optional input, or the length of a list.
template <class Node>
absl::Status read_count(const Node& node, const Rule& rule, int input, int64_t* count) {
  const Input& declared = rule.op.inputs[input];
  *count = 1;
  if (is_counted(declared)) TF_RETURN_IF_ERROR(node.GetAttr(count_attribute(declared.name), count));
  if (declared.kind == Kind::list || *count <= 1) return absl::OkStatus();
  return invalid(rule.must(input, "be one tensor or none", std::to_string(*count) + " tensors"));
}

// The dtype of an output in an OpDef comes from an input or from the node, not from `infer`. An output without
// elements, such as the gradient of an absent input, may have any.
inline absl::Status check_output_dtype(const Rule& rule, int output, tensorflow::DataType dtype) {
  const Shape& shape = rule.outputs[output];
  const DType got = core_dtype(dtype);
  const auto end = shape.dims + shape.rank;
  const bool empty = shape.ranked && std::find(shape.dims, end, 0) != end;
  if (got == shape.dtype || empty) return absl::OkStatus();
  return invalid(Status::error("fusedops.", public_name(rule.op), ": ",
                               type_attribute(rule.op, rule.op.outputs[output]), " must be ", name_of(shape.dtype),
                               "; got ", name_of(got)));
}

}  // namespace fusedops::tf_binding
