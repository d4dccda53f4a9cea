// The core's execution context for one call: the current stream of the tensors' GPU, or torch's thread pool.
#pragma once

#include "core/declaration/context.h"
#include "tensors.h"

namespace fusedops::torch_binding {

Context context_for(Device device);

}  // namespace fusedops::torch_binding
