// The ways in which a kernel may hold a row, and which of them is taken.
#pragma once

#include "core/row_cluster.cuh"

namespace fusedops::cuda {

// Many rows: 4 packs per thread, so that many elements share what a thread costs. Few rows: half the packs in twice the
// threads, since latency is all. Cluster: 4 packs per thread of several blocks. Chunks: the row is not held as a whole.
enum class RowWay { many, few, cluster, chunks };

constexpr int packs_of(RowWay way) { return way == RowWay::few ? 2 : 4; }

// Whether some of these blocks will wait for others to end. If they are small, more of them run at once than this
// assumes, and take no longer.
inline bool are_many(int64_t blocks) { return blocks > 2 * device_attribute(cudaDevAttrMultiProcessorCount); }

inline RowWay way_of(const RowGroups& groups, int64_t rows, int64_t size) {
  if (!groups.holds(size)) return RowWay::chunks;
  if (groups.cluster > 1) return RowWay::cluster;
  return groups.threads > kMostRowThreads / 2 || are_many(groups.blocks(rows)) ? RowWay::many : RowWay::few;
}

// For a kernel that goes from row to row if there are many (RowCluster::each_row), with room for the next row of a
// block in shared memory. What is ordered has to be aligned: cp.async moves 16 bytes.
inline Grid cluster_grid(const RowGroups& groups, int64_t rows, bool aligned, int next_row_bytes) {
  Grid grid = groups.grid(rows);
  grid.resident = aligned && are_many(grid.blocks);
  if (grid.resident) grid.shared_bytes = next_row_bytes;
  return grid;
}

}  // namespace fusedops::cuda
