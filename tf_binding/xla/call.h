// One custom call serves all operators. The lowering writes its attributes, and the handler reads them.
#pragma once

namespace fusedops::tf_binding::xla_call {

// The name under which XLA knows the handlers for the host and for CUDA.
inline constexpr const char* kTarget = "fusedops";

// Its attributes.
inline constexpr const char* kOperator = "op";            // the operator's name
inline constexpr const char* kCounts = "counts";          // the number of tensors of each input
inline constexpr const char* kAttributes = "attributes";  // the operator's own by name, as parse() reads them

// Its results are the operator's outputs, then its workspace, which XLA allocates like a result, then the mutated
// inputs in the memory of their operands.

}  // namespace fusedops::tf_binding::xla_call
