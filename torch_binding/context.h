// What torch lends to one call: the current stream of the tensors' GPU, or its thread pool.
#pragma once

#include "core/declaration/context.h"
#include "tensors.h"

namespace fusedops::torch_binding {

Context context_for(Device device);

}  // namespace fusedops::torch_binding
