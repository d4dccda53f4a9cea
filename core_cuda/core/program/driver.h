// Functions of the CUDA driver that the runtime of CUDA 12.4 lacks: kernels from machine code. They are looked up at
// run time, since machines without a GPU have no driver.
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

// Null without a driver, or with one older than CUDA 12.
const Driver* driver();

}  // namespace fusedops::program
