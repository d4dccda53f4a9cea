// CUDA's driver, for what the runtime of CUDA 12.4 does not have: kernels from machine code. It is looked up, since a
// machine without a GPU has none.
#pragma once

#include <cuda.h>

#include "core/declaration/status.h"

namespace fusedops::program {

struct Driver {
  decltype(&cuDriverGetVersion) version;
  decltype(&cuGetErrorString) error_string;
  decltype(&cuLibraryLoadData) load;
  decltype(&cuLibraryGetKernel) get_kernel;
  decltype(&cuKernelGetFunction) get_function;
  decltype(&cuLaunchKernelEx) launch;

  Status check(CUresult error, const char* what) const;
};

// Null where there is none, or one older than CUDA 12.
const Driver* driver();

}  // namespace fusedops::program
