// What the rows of the table are in TensorFlow.
#pragma once

#include "core/declaration/operator.h"
#include "tensorflow/core/framework/op_def.pb.h"

namespace fusedops::tf_binding {

// Gives TensorFlow the OpDef of a row, unless it has that very one.
Status register_schema(const Operator& op);

// The OpDef of a row as TensorFlow has it; null, if it refused it.
const tensorflow::OpDef* registered_schema(const Operator& op);

// Those of a row for the CPU and for the GPU.
void register_kernels(const Operator& op);

}  // namespace fusedops::tf_binding
