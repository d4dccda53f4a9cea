// One custom call serves all operators. What the lowering writes into it, for the handler to read.
#pragma once

namespace fusedops::tf_binding::xla_call {

// The name that XLA knows the handlers by, for the host and for CUDA.
inline constexpr const char* kTarget = "fusedops";

// Its attributes.
inline constexpr const char* kOperator = "op";            // the operator's name
inline constexpr const char* kCounts = "counts";          // of the tensors of each input
inline constexpr const char* kAttributes = "attributes";  // the operator's own by name, in the spelling of parse()

// Its results are the operator's outputs, its workspace, which XLA allocates like a result, and what the operator
// updates, in the memory of the operands.

}  // namespace fusedops::tf_binding::xla_call
