// Rows that the registers of a block do not hold may be shared by a cluster of blocks (CUDA Programming Guide, "Thread
// Block Clusters"), in equal shares. Of rows that a cluster does not hold either, the blocks take tiles in turn, and
// read them again in each pass over the row, mostly from the L2 cache. GPUs before 9.0 have no clusters, and small
// slices of later ones no room for them: there, one block takes the row.
//
// The blocks of a cluster wait for each other, and memory would be idle meanwhile. Where there are many rows, each
// cluster that fits on the GPU therefore takes one row after the other, and prefetches the next before it sums the
// present one.
#pragma once

#include <cooperative_groups.h>

#include "core/common/rows.h"
#include "core/cuda/prefetch.cuh"
#include "core/cuda/rows.cuh"

namespace fusedops::cuda {

// A block of at most `most` threads, if that holds the row; else a cluster of blocks, where the GPU has them, each of
// which takes an equal share of a row that they hold. Shares are multiples of `unit` elements, which neighbouring
// threads of one block have.
template <class T, int kPacks, class Kernel>
RowGroups block_or_cluster(int64_t size, int most, Kernel kernel, int unit = kPackSize<T>) {
  const int fewest = unit / kPackSize<T>;
  const RowGroups block = row_groups<T, kPacks>(size, kLeastBlockThreads, most, fewest);
  if (block.holds(size)) return block;
  RowGroups groups = row_groups<T, kPacks>(size, kLeastBlockThreads, kRowThreads);
  if (!runs_hopper_code(kernel) || !device_attribute(cudaDevAttrClusterLaunch)) return groups;
  groups.cluster = cluster_of(size, groups.tile, device_attribute(cudaDevAttrMultiProcessorCount));
  const int64_t of_all = int64_t(groups.cluster) * unit;
  if (groups.holds(size)) groups.per_block = static_cast<int>((size + of_all - 1) / of_all * unit);
  return groups;
}

// Whether some blocks will wait for others to end, where two share a multiprocessor. Smaller blocks fit in greater
// number per SM; the variants for many and for few rows are then equally fast.
inline bool are_many(int64_t blocks) { return blocks > 2 * device_attribute(cudaDevAttrMultiProcessorCount); }

// For a kernel that goes from row to row if there are many (RowCluster::each_row), with room for the next row of a
// block in shared memory. What is prefetched must be aligned: cp.async moves 16 bytes.
inline Grid cluster_grid(const RowGroups& groups, int64_t rows, bool aligned, int next_row_bytes) {
  Grid grid = groups.grid(rows);
  grid.resident = aligned && are_many(grid.blocks);
  if (grid.resident) grid.shared_bytes = next_row_bytes;
  return grid;
}

// The next row of a block, kPacks packs for each thread.
template <class T, int kPacks>
using NextRow = Prefetch<T, kRowThreads, 1, kPacks>;

// Constructed when the kernel begins.
class RowCluster {
 public:
  __device__ explicit RowCluster(const RowGroups& groups) : groups_(groups) {
#if __CUDA_ARCH__ >= 900
    if (groups.cluster > 1) cooperative_groups::this_cluster().barrier_arrive();
#endif
  }

  // A thread's place in a row that the cluster holds.
  template <class T>
  __device__ RowThread<kRowThreads> thread() const {
    return RowThread<kRowThreads>(groups_, groups_.cluster_index(), static_cast<int>(groups_.first() / kPackSize<T>));
  }

  // Goes through the rows of this cluster, beginning with that of `me`. The first is loaded, each of the others is
  // prefetched while the row before it is processed: row.load(), row.prefetch(index), row.wait(). finish() does the
  // rest. It calls gather(), which synchronizes the blocks, so that it may reuse its shared memory for each row.
  template <bool kAligned, class Row, class Finish>
  __device__ void each_row(RowThread<kRowThreads>& me, int64_t rows, Row& row, Finish finish) {
    const int64_t stride = groups_.cluster_count();
    row.load();
    for (bool goes_on = true; goes_on;) {
      const int64_t next = me.row + stride;
      goes_on = kAligned && next < rows;  // misaligned rows have a cluster each: see cluster_grid()
      if (goes_on) row.prefetch(next);
      finish();
      if (!goes_on) break;
      me.row = next;
      row.wait();
    }
  }

  // The values of all blocks of the cluster, by rank; a value is the same in all threads of its block. Every thread
  // must call this equally often, at least once, and waits for all others.
  template <class V>
  __device__ const V* gather(const V& value, V (&values)[2][kMostCluster]) {
    turn_ ^= 1;  // the others may still be reading what was gathered last
    V(&gathered)[kMostCluster] = values[turn_];
#if __CUDA_ARCH__ >= 900
    const auto cluster = cooperative_groups::this_cluster();
    if (!all_are_here_) cluster.barrier_wait();  // only then has every block got shared memory
    all_are_here_ = true;
    if (threadIdx.x < groups_.cluster) *cluster.map_shared_rank(gathered + groups_.rank(), threadIdx.x) = value;
    cluster.sync();
#endif
    return gathered;
  }

  template <class V, class Combine>
  __device__ V combined(const V& value, V (&values)[2][kMostCluster], Combine combine) {
    if (groups_.cluster == 1) return value;
    const V* of_blocks = gather(value, values);
    V all = of_blocks[0];
    for (int block = 1; block < groups_.cluster; ++block) all = combine(all, of_blocks[block]);
    return all;
  }

  template <class V>
  __device__ V sum(const V& value, V (&values)[2][kMostCluster]) {
    return combined(value, values, [](const V& a, const V& b) { return a + b; });
  }

 private:
  const RowGroups& groups_;
  bool all_are_here_ = false;
  int turn_ = 0;
};

}  // namespace fusedops::cuda
