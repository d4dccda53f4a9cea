// Operators that mutate inputs, called with tensors that have torch's negative bit.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "core/declaration/operator.h"

namespace fusedops::torch_binding {

// True if the operator has a kernel of its own for the Negative key. torch's fallback for this key copies what the
// operator reads, but takes no mutated list, and expects that a mutated tensor is returned.
bool has_negative_kernel(const Operator& op);

// Calls op with copies of the tensors that have the negative bit, and copies the mutated ones back. `stack` holds the
// arguments of op's schema, and then its results.
void call_negative(const Operator& op, StableIValue* stack);

}  // namespace fusedops::torch_binding
