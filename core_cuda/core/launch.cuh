// Kernel launches that report their errors as a Status.
#pragma once

#include <cuda_runtime.h>

#include "core/context.h"
#include "core/status.h"

namespace fusedops::cuda {

inline constexpr int kThreads = 256;  // per block, where nothing asks for another number

inline Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return Status::error("fusedops: ", what, " failed: ", cudaGetErrorString(error));
}

// Launches on the caller's stream. Nothing is allocated and nothing waits, so that the call can be captured in a graph.
template <class... Parameters, class... Arguments>
Status launch(const Context& context, void (*kernel)(Parameters...), int64_t blocks, int threads,
              Arguments&&... arguments) {
  if (blocks == 0) return {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = static_cast<cudaStream_t>(context.stream);
  return check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), "a kernel launch");
}

}  // namespace fusedops::cuda
