// One call of an operator from torch.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "core/declaration/operator.h"

namespace fusedops::torch_binding {

// Takes the arguments of op's schema from the stack and leaves its results there.
void call(const Operator& op, StableIValue* stack);

}  // namespace fusedops::torch_binding
