// Operators that update inputs, called with torch's negative bit.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "core/declaration/operator.h"

namespace fusedops::torch_binding {

// True if the operator has a kernel of its own for the Negative key. torch's fallback for this key copies what the
// operator reads, but takes no updated list, and expects that an updated tensor is returned.
bool has_negative_kernel(const Operator& op);

// Calls op with copies of the tensors that have the negative bit, and copies the updated ones back. `stack` holds the
// arguments of op's schema, and then its results.
void call_negative(const Operator& op, StableIValue* stack);

}  // namespace fusedops::torch_binding
