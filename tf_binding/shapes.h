#pragma once

#include "core/declaration/operator.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace fusedops::tf_binding {

// The shape function of an operator: `infer`, over the dimensions of a graph.
absl::Status infer_shapes(const Operator& op, tensorflow::shape_inference::InferenceContext* graph);

}  // namespace fusedops::tf_binding
