// The variants of a row kernel, by the way it holds a row, and the selection among them.
#pragma once

#include "core/cuda/row_cluster.cuh"

namespace fusedops::cuda {

// many: 4 packs per thread, which amortize the cost of a thread. few: half the packs in twice the threads, for latency.
// cluster: 4 packs per thread of several blocks. staged: for many rows, the same parts of a row in the shared memory of
// blocks with half the threads. tiles: the row is not held as a whole.
enum class RowVariant { many, few, cluster, staged, tiles };

constexpr int packs_of(RowVariant variant) { return variant == RowVariant::few ? 2 : 4; }

// `few` requires that half the packs in twice the threads fit in one block. A kernel may treat `few` as `many`.
inline RowVariant variant_of(const RowGroups& groups, int64_t rows, int64_t size) {
  if (!groups.holds(size)) return RowVariant::tiles;
  if (groups.cluster > 1) return RowVariant::cluster;
  return groups.threads > kMaxRowThreads / 2 || is_multi_wave(groups.blocks(rows)) ? RowVariant::many : RowVariant::few;
}

}  // namespace fusedops::cuda
