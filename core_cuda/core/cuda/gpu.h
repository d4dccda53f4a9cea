#pragma once

#include "core/declaration/dispatch.h"

namespace fusedops::cuda {

// The current GPU. A thread asks the driver once, until it changes to another GPU.
Status current_gpu(GpuProperties* result);

}  // namespace fusedops::cuda
