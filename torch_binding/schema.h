// The torch schema of a declared operator.
#pragma once

#include <string>

#include "core/declaration/operator.h"

namespace fusedops::torch_binding {

// axpby(Tensor? a, Tensor x, Tensor b, float a_value=0.0) -> (Tensor y)
//
// A scalar input is a tensor; where it is None, the number in <name>_value takes its place. Nothing is keyword-only:
// torch takes twice as long over a call with keywords. Inputs that are updated are marked:
//
// adamw(Tensor(a!)[] params, Tensor[] grads, ...) -> ()
std::string schema(const Operator& op);

}  // namespace fusedops::torch_binding
