// Rows too long for the registers of a block are divided equally among a cluster of blocks (CUDA Programming Guide,
// "Thread Block Clusters"). If a cluster cannot hold the row either, its blocks take tiles in turn and read them again
// in each pass, mostly from L2. Without clusters, on GPUs before 9.0 and in small slices of later ones, one block
// processes the row.
//
// Memory would be idle while the blocks of a cluster synchronize. With many rows, each resident cluster therefore loops
// over rows, and prefetches the next row before it reduces the current one. Norms have more, smaller blocks instead.
#pragma once

#include <cooperative_groups.h>

#include "core/common/rows.h"
#include "core/cuda/prefetch.cuh"
#include "core/cuda/rows.cuh"

namespace fusedops::cuda {

// A block of at most `most` threads if it holds the row; else, if the GPU has clusters, a cluster with equal parts of a
// row that it holds. Parts are multiples of `unit` elements, which neighbouring threads of one block hold.
template <class T, int kPacks, class Kernel>
RowGroups block_or_cluster(int64_t size, int most, Kernel kernel, int unit = kPackSize<T>) {
  const int fewest = unit / kPackSize<T>;
  const RowGroups block = row_groups<T, kPacks>(size, kMinBlockThreads, most, fewest);
  if (block.holds(size)) return block;
  RowGroups groups = row_groups<T, kPacks>(size, kMinBlockThreads, kRowThreads);
  if (!runs_hopper_code(kernel) || !device_attribute(cudaDevAttrClusterLaunch)) return groups;
  groups.cluster = cluster_of(size, groups.tile, device_attribute(cudaDevAttrMultiProcessorCount));
  const int64_t of_all = int64_t(groups.cluster) * unit;
  if (groups.holds(size)) groups.per_block = static_cast<int>((size + of_all - 1) / of_all * unit);
  return groups;
}

// True if the blocks take more than one wave at two blocks per multiprocessor. More of the smaller blocks fit per SM;
// the variants for many and for few rows are then equally fast.
inline bool is_multi_wave(int64_t blocks) { return blocks > 2 * device_attribute(cudaDevAttrMultiProcessorCount); }

// The grid of a kernel that loops over rows if there are many (RowCluster::each_row), with shared memory for a block's
// next row. Prefetched rows must be aligned, since cp.async moves 16 bytes.
inline Grid cluster_grid(const RowGroups& groups, int64_t rows, bool aligned, int next_row_bytes) {
  Grid grid = groups.grid(rows);
  grid.resident = aligned && is_multi_wave(grid.blocks);
  if (grid.resident) grid.shared_bytes = next_row_bytes;
  return grid;
}

// The next row of a block, with kPacks packs per thread.
template <class T, int kPacks>
using NextRow = Prefetch<T, kRowThreads, 1, kPacks>;

// A kernel constructs this first.
class RowCluster {
 public:
  __device__ explicit RowCluster(const RowGroups& groups) : groups_(groups) {
#if __CUDA_ARCH__ >= 900
    if (groups.cluster > 1) cooperative_groups::this_cluster().barrier_arrive();
#endif
  }

  // The position of a thread in a row that the cluster holds.
  template <class T>
  __device__ RowThread<kRowThreads> thread() const {
    return RowThread<kRowThreads>(groups_, groups_.cluster_index(), static_cast<int>(groups_.first() / kPackSize<T>));
  }

  // Loops over the rows of this cluster, beginning with that of `me`. The first row is loaded; each later one is
  // prefetched while its predecessor is processed: row.load(), row.prefetch(index), row.wait(). finish() processes a
  // row. It calls gather(), which synchronizes the blocks, so shared memory can be reused for each row.
  template <bool kAligned, class Row, class Finish>
  __device__ void each_row(RowThread<kRowThreads>& me, int64_t rows, Row& row, Finish finish) {
    const int64_t stride = groups_.cluster_count();
    row.load();
    for (bool has_next = true; has_next;) {
      const int64_t next = me.row + stride;
      has_next = kAligned && next < rows;  // unaligned rows have a cluster each: see cluster_grid()
      if (has_next) row.prefetch(next);
      finish();
      if (!has_next) break;
      me.row = next;
      row.wait();
    }
  }

  // The values of all blocks of the cluster, by rank. A value is the same in all threads of its block. Every thread
  // must call this equally often, at least once; it is a cluster barrier.
  template <class V>
  __device__ const V* gather(const V& value, V (&values)[2][kMaxCluster]) {
    buffer_ ^= 1;  // double buffering: other blocks may still read the last values
    V(&gathered)[kMaxCluster] = values[buffer_];
#if __CUDA_ARCH__ >= 900
    const auto cluster = cooperative_groups::this_cluster();
    if (!is_cluster_started_)
      cluster.barrier_wait();  // every block must have started before its shared memory is written
    is_cluster_started_ = true;
    if (threadIdx.x < groups_.cluster) *cluster.map_shared_rank(gathered + groups_.rank(), threadIdx.x) = value;
    cluster.sync();
#endif
    return gathered;
  }

  template <class V, class Combine>
  __device__ V combined(const V& value, V (&values)[2][kMaxCluster], Combine combine) {
    if (groups_.cluster == 1) return value;
    const V* of_blocks = gather(value, values);
    V all = of_blocks[0];
    for (int block = 1; block < groups_.cluster; ++block) all = combine(all, of_blocks[block]);
    return all;
  }

  template <class V>
  __device__ V sum(const V& value, V (&values)[2][kMaxCluster]) {
    return combined(value, values, [](const V& a, const V& b) { return a + b; });
  }

 private:
  const RowGroups& groups_;
  bool is_cluster_started_ = false;
  int buffer_ = 0;
};

}  // namespace fusedops::cuda
