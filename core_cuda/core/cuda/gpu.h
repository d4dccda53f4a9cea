#pragma once

#include "core/declaration/dispatch.h"

namespace fusedops::cuda {

// The properties of the current GPU, cached per thread until it changes to another GPU.
Status current_gpu(GpuProperties* result);

}  // namespace fusedops::cuda
