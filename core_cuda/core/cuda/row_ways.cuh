// The ways in which a kernel may hold a row, and which of them is taken.
#pragma once

#include "core/cuda/row_cluster.cuh"

namespace fusedops::cuda {

// Many rows: 4 packs per thread, so that many elements share what a thread costs. Few rows: half the packs in twice the
// threads, since latency is all. Cluster: 4 packs per thread of several blocks. Chunks: the row is not held as a whole.
enum class RowWay { many, few, cluster, chunks };

constexpr int packs_of(RowWay way) { return way == RowWay::few ? 2 : 4; }

// Few only if half the packs in twice the threads are one block. A kernel may treat few as many.
inline RowWay way_of(const RowGroups& groups, int64_t rows, int64_t size) {
  if (!groups.holds(size)) return RowWay::chunks;
  if (groups.cluster > 1) return RowWay::cluster;
  return groups.threads > kMostRowThreads / 2 || are_many(groups.blocks(rows)) ? RowWay::many : RowWay::few;
}

}  // namespace fusedops::cuda
