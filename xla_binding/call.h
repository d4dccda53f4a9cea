// The custom call of XLA that serves all operators. A framework's lowering writes its attributes, and the handler reads
// them.
#pragma once

#include <string>

#include "core/declaration/status.h"

namespace fusedops::xla_binding {

// The name under which XLA knows the handlers for the host and for CUDA.
inline constexpr const char* kTarget = "fusedops";

// Its attributes.
inline constexpr const char* kOperator = "op";            // the operator's name
inline constexpr const char* kCounts = "counts";          // the number of tensors of each input
inline constexpr const char* kAttributes = "attributes";  // the operator's own by name, as parse() reads them

// Its results are the operator's outputs, then its workspace, which XLA allocates like a result, then the mutated
// inputs in the memory of their operands.

// True if a kernel failed because of an argument: its sentence then begins with "fusedops.<op>: ". Other failures are
// the library's own.
inline bool is_about_an_argument(const Status& status) { return status.sentence().starts_with("fusedops."); }

}  // namespace fusedops::xla_binding
