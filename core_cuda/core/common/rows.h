// Row partitions of CPU and GPU kernels: row chunks of sums, rows that can be joined, and clusters that share a row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace fusedops {

// The gradient of a weight is a sum over rows. Each row chunk is summed sequentially, then the chunks' sums pairwise.
// The partition, and so the bits, depends on the number of rows and on `side_by_side` alone.
struct RowChunks {
  int64_t rows = 0;  // in a chunk; the last one may have fewer
  int64_t count = 0;
};

// At most 64 rows in a chunk keep the error of the sequential sums below that of the pairwise sum. A multiple of 132
// chunks, if there are enough rows, fills the last wave of an H100 or H200. A kernel that sums several rows side by
// side may have `side_by_side` times as many rows in a chunk.
inline RowChunks row_chunks_of(int64_t rows, int64_t side_by_side = 1) {
  constexpr int64_t kMultiprocessors = 132;
  const auto ceil_divide = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  if (rows == 0) return {};
  const int64_t rounds = ceil_divide(rows, 64 * side_by_side * kMultiprocessors);
  const int64_t size = ceil_divide(ceil_divide(rows, rounds * kMultiprocessors), side_by_side) * side_by_side;
  return {size, ceil_divide(rows, size)};
}

inline constexpr int kMaxCluster = 8;  // blocks: CUDA's portable limit, and the number that fits on 8 multiprocessors

// The cluster size for a row of `size` elements of which each block holds `tile`: the smallest sufficient power of two,
// or the largest cluster. It depends on the length of the row alone, as does the order of its sum.
//
// If the GPU has fewer multiprocessors than the cluster has blocks, as in a small MIG slice, the cluster might never be
// scheduled. One block processes the row then, as on a GPU without clusters.
inline int cluster_of(int64_t size, int64_t tile, int multiprocessors) {
  int blocks = 1;
  while (blocks * tile < size && blocks < kMaxCluster) blocks *= 2;
  return blocks <= multiprocessors ? blocks : 1;
}

// Joins rows into one if they lie without gaps in all tensors, for operators that ignore row boundaries.
inline void join_rows(int64_t& rows, int64_t& size, std::initializer_list<int64_t> strides) {
  for (const int64_t stride : strides)
    if (rows > 1 && stride != size) return;
  size *= rows;
  rows = 1;
}

}  // namespace fusedops
