// The variants of a kernel over rows, by how it holds a row, and the choice among them.
#pragma once

#include "core/cuda/row_cluster.cuh"

namespace fusedops::cuda {

// Many rows: 4 packs per thread, so that many elements share what a thread costs. Few rows: half the packs in twice the
// threads, since latency is all. Cluster: 4 packs per thread of several blocks. Tiles: the row is not held as a whole.
enum class RowVariant { many, few, cluster, tiles };

constexpr int packs_of(RowVariant variant) { return variant == RowVariant::few ? 2 : 4; }

// Few only if half the packs in twice the threads are one block. A kernel may treat few as many.
inline RowVariant variant_of(const RowGroups& groups, int64_t rows, int64_t size) {
  if (!groups.holds(size)) return RowVariant::tiles;
  if (groups.cluster > 1) return RowVariant::cluster;
  return groups.threads > kMostRowThreads / 2 || are_many(groups.blocks(rows)) ? RowVariant::many : RowVariant::few;
}

}  // namespace fusedops::cuda
