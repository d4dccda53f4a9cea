#include "core/cuda/gpu.h"
#include "core/cuda/launch.cuh"

namespace fusedops::cuda {

Status current_gpu(GpuProperties* result) {
  thread_local int known_device = -1;
  thread_local GpuProperties known;
  int device = 0;
  FUSEDOPS_TRY(check(cudaGetDevice(&device), "cudaGetDevice"));
  if (device != known_device) {
    const auto ask = [&](cudaDeviceAttr attribute, int* to) {
      return check(cudaDeviceGetAttribute(to, attribute, device), "cudaDeviceGetAttribute");
    };
    GpuProperties gpu;
    FUSEDOPS_TRY(ask(cudaDevAttrComputeCapabilityMajor, &gpu.major));
    FUSEDOPS_TRY(ask(cudaDevAttrComputeCapabilityMinor, &gpu.minor));
    FUSEDOPS_TRY(ask(cudaDevAttrMultiProcessorCount, &gpu.multiprocessors));
    FUSEDOPS_TRY(ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &gpu.shared_bytes));
#ifdef FUSEDOPS_SM90
    gpu.has_sm90_kernels = gpu.major == 9;
#endif
    known = gpu, known_device = device;
  }
  *result = known;
  return {};
}

}  // namespace fusedops::cuda
