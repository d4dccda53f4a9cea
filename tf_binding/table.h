// The operators of the table in TensorFlow.
#pragma once

#include "core/declaration/operator.h"
#include "tensorflow/core/framework/op_def.pb.h"

namespace fusedops::tf_binding {

// Registers the OpDef of an operator, unless the identical one is registered.
Status register_schema(const Operator& op);

// The registered OpDef of an operator; null if TensorFlow has refused it.
const tensorflow::OpDef* registered_schema(const Operator& op);

// Registers the kernels of an operator for the CPU and for the GPU.
void register_kernels(const Operator& op);

}  // namespace fusedops::tf_binding
