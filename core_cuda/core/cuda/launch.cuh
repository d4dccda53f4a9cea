// Kernel launches that report their errors as a Status.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/common/rows.h"
#include "core/declaration/context.h"
#include "core/declaration/status.h"

namespace fusedops::cuda {

inline constexpr int kThreads = 256;  // default block size

inline Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();  // clears the error, so the next call does not report it
  return Status::error("fusedops: ", what, " failed: ", cudaGetErrorString(error));
}

// The first line of every kernel that launch() starts. With programmatic dependent launch (CUDA Programming Guide), a
// kernel may be scheduled while its predecessor on the stream still runs, which hides most of the launch. This function
// lets the next kernel start, and waits until all earlier work is complete and visible. Kernels that let it start
// later, such as gemm_kernel, call both functions themselves.
__device__ inline void begin_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

// An attribute of the current GPU.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

inline constexpr int kMaxStaticShared = 1024;  // maximum of static shared memory in a kernel, in bytes

// Attributes of a kernel on the current GPU. Each thread caches them, since a query takes about a microsecond.
struct KernelAttributes {
  // True if the loaded code was compiled for 9.0 or later, and so has clusters and the wait in begin_kernel(). A 9.0
  // GPU may run code compiled for 8.0.
  bool is_sm90_code;
  int declared_shared, dynamic_shared;  // bytes of shared memory: static, and the current dynamic limit

  static Status of(const void* kernel, KernelAttributes** result) {
    int device = 0;
    FUSEDOPS_TRY(check(cudaGetDevice(&device), "cudaGetDevice"));
    struct Hash {
      size_t operator()(const std::pair<const void*, int>& key) const {
        return std::hash<const void*>()(key.first) + static_cast<size_t>(key.second);
      }
    };
    thread_local std::unordered_map<std::pair<const void*, int>, KernelAttributes, Hash> known;
    const auto found = known.find({kernel, device});
    if (found != known.end()) {
      *result = &found->second;
      return {};
    }
    cudaFuncAttributes attributes;
    FUSEDOPS_TRY(check(cudaFuncGetAttributes(&attributes, kernel), "asking about a kernel"));
    *result = &known[{kernel, device}];
    **result = {attributes.ptxVersion >= 90, static_cast<int>(attributes.sharedSizeBytes),
                attributes.maxDynamicSharedSizeBytes};
    return {};
  }
};

template <class Kernel>
bool runs_hopper_code(Kernel kernel) {
  KernelAttributes* facts = nullptr;
  return KernelAttributes::of(reinterpret_cast<const void*>(kernel), &facts).ok() && facts->is_sm90_code;
}

// The blocks of a cluster that share `size` items, of which each holds `tile`: cluster_of(), or one without clusters.
template <class Kernel>
int cluster_for(Kernel kernel, int64_t size, int64_t tile) {
  if (!runs_hopper_code(kernel) || !device_attribute(cudaDevAttrClusterLaunch)) return 1;
  return cluster_of(size, tile, device_attribute(cudaDevAttrMultiProcessorCount));
}

// Raises the kernel's limit of dynamic shared memory to at least this many bytes. The limit is per kernel and GPU, and
// shared by all threads. It is raised once, to the GPU's maximum, and never lowered: a thread could otherwise lower it
// between another thread's request and its launch.
template <class Kernel>
Status allow_shared_memory(Kernel kernel, int bytes) {
  constexpr int kWithoutAsking = 48 << 10;
  if (bytes + kMaxStaticShared <= kWithoutAsking) return {};
  KernelAttributes* facts = nullptr;
  FUSEDOPS_TRY(KernelAttributes::of(reinterpret_cast<const void*>(kernel), &facts));
  if (bytes <= facts->dynamic_shared) return {};
  const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - facts->declared_shared;
  const int allowed = std::max(bytes, most);
  FUSEDOPS_TRY(check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, allowed),
                     "asking for shared memory"));
  facts->dynamic_shared = allowed;
  return {};
}

struct Grid {
  int64_t blocks;
  int threads;
  int shared_bytes = 0;   // dynamic shared memory
  int cluster = 1;        // blocks per cluster
  bool resident = false;  // with clusters: at most as many as are resident at once; the kernel loops over the rest
  bool early = true;      // may be scheduled while its predecessor still runs
};

// True if a kernel of so many long blocks may be early. Early blocks find multiprocessors half full: some get two, and
// take twice as long, while others get none. With few blocks, most multiprocessors are empty.
inline bool can_be_early(int64_t blocks) { return 4 * blocks <= device_attribute(cudaDevAttrMultiProcessorCount); }

// Launches on the caller's stream. It neither allocates nor synchronizes, so graphs can capture it.
template <class... Parameters, class... Arguments>
Status launch(const Context& context, void (*kernel)(Parameters...), const Grid& grid, Arguments&&... arguments) {
  if (grid.blocks == 0) return {};
  FUSEDOPS_TRY(allow_shared_memory(kernel, grid.shared_bytes));
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = grid.early;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(grid.cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
  config.stream = static_cast<cudaStream_t>(context.stream);
  config.attrs = attributes;
  config.numAttrs = grid.cluster > 1 ? 2 : runs_hopper_code(kernel) ? 1 : 0;
  if (grid.resident) {
    int clusters = 0;
    FUSEDOPS_TRY(check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "counting clusters"));
    if (clusters > 0) config.gridDim.x = std::min(config.gridDim.x, static_cast<unsigned>(clusters * grid.cluster));
  }
  return check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), "a kernel launch");
}

template <class... Parameters, class... Arguments>
Status launch(const Context& context, void (*kernel)(Parameters...), int64_t blocks, int threads,
              Arguments&&... arguments) {
  return launch(context, kernel, Grid{blocks, threads}, std::forward<Arguments>(arguments)...);
}

}  // namespace fusedops::cuda
