// The torch schema of a declared operator.
#pragma once

#include <string>

#include "core/declaration/operator.h"

namespace fusedops::torch_binding {

// axpby(Tensor? a, Tensor x, Tensor b, float a_value=0.0) -> (Tensor y)
//
// A scalar input is a tensor, or None if the number is in <name>_value. Nothing is keyword-only, since torch takes
// twice as long for a call with keywords. Mutated inputs are marked:
//
// adamw(Tensor(a!)[] params, Tensor[] grads, ...) -> ()
std::string schema(const Operator& op);

}  // namespace fusedops::torch_binding
