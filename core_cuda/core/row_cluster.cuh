// Rows that the registers of a block do not hold may be shared by a cluster of blocks (CUDA Programming Guide, "Thread
// Block Clusters"), each of which takes every so many-th chunk. What a cluster does not hold either is read anew
// whenever the row is walked through, mostly from the L2 cache. GPUs before 9.0 have no clusters: there, one block
// takes the row.
#pragma once

#include <cooperative_groups.h>

#include "core/rows.cuh"

namespace fusedops::cuda {

inline constexpr int kMostCluster = 8;  // blocks: what CUDA calls portable; a slice of a GPU may have room for fewer

// The least power of two that holds the row, or the most blocks that there are. Their number follows from the length of
// the row alone, as the order of its sum does.
template <class Kernel>
RowGroups with_cluster(RowGroups groups, int64_t size, Kernel kernel) {
  if (!is_for_hopper(kernel) || !device_attribute(cudaDevAttrClusterLaunch)) return groups;
  while (!groups.holds(size) && groups.cluster < kMostCluster) groups.cluster *= 2;
  return groups;
}

// Constructed when the kernel begins.
class RowCluster {
 public:
  __device__ explicit RowCluster(const RowGroups& groups) : groups_(groups) {
#if __CUDA_ARCH__ >= 900
    if (groups.cluster > 1) cooperative_groups::this_cluster().barrier_arrive();
#endif
  }

  // Combines what the blocks have found, which is the same in all threads of a block, in the same order for every row;
  // all of them get the result. Every thread must come here, at least once. `values` serves once.
  template <class V, class Combine>
  __device__ V reduce(V value, V (&values)[kMostCluster], Combine combine) {
#if __CUDA_ARCH__ >= 900
    if (groups_.cluster == 1) return value;
    const auto cluster = cooperative_groups::this_cluster();
    if (!all_are_here_) cluster.barrier_wait();  // only then has every block got shared memory
    all_are_here_ = true;
    if (threadIdx.x < groups_.cluster) *cluster.map_shared_rank(values + groups_.rank(), threadIdx.x) = value;
    cluster.sync();
    value = values[0];
    for (int block = 1; block < groups_.cluster; ++block) value = combine(value, values[block]);
#endif
    return value;
  }

 private:
  const RowGroups& groups_;
  bool all_are_here_ = false;
};

}  // namespace fusedops::cuda
