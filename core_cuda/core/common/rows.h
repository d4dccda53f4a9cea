// What the kernels over rows share on the CPU and on the GPU: how sums over rows are cut into slabs, which rows can be
// joined into one, and how many blocks share one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace fusedops {

// The gradient of a weight is a sum over rows. Each slab of rows is summed one after the other, then the slabs' sums
// are added pairwise. The cut follows from the number of rows alone, and so do the bits.
struct Slabs {
  int64_t rows = 0;  // in a slab; the last one may have fewer
  int64_t count = 0;
};

// At most 64 rows in a slab keep the error of the sequential part below that of the pairwise one. A multiple of 132
// slabs, if there are enough rows, leaves no multiprocessor of an H100 or H200 idle in the last round.
//
// A kernel that sums several rows side by side may have `side_by_side` times as many in a slab: there are never more
// slabs then.
inline Slabs slabs_of(int64_t rows, int64_t side_by_side = 1) {
  constexpr int64_t kMultiprocessors = 132;
  const auto ceil_divide = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  if (rows == 0) return {};
  const int64_t rounds = ceil_divide(rows, 64 * side_by_side * kMultiprocessors);
  const int64_t size = ceil_divide(ceil_divide(rows, rounds * kMultiprocessors), side_by_side) * side_by_side;
  return {size, ceil_divide(rows, size)};
}

inline constexpr int kMostCluster = 8;  // blocks: what CUDA calls portable, and what fits on 8 multiprocessors

// How many blocks share a row of `size` elements, of which each holds `tile`: the least power of two that holds it, or
// the greatest cluster. Their number follows from the length of the row alone, as the order of its sum does. Only
// where there are fewer multiprocessors than these blocks, as in a small slice of a GPU, they might never run at once:
// one block takes the row then, as on a GPU without clusters.
inline int cluster_of(int64_t size, int64_t tile, int multiprocessors) {
  int blocks = 1;
  while (blocks * tile < size && blocks < kMostCluster) blocks *= 2;
  return blocks <= multiprocessors ? blocks : 1;
}

// Rows without gaps in all tensors are one long row, for operators that do not care where a row ends.
inline void join_rows(int64_t& rows, int64_t& size, std::initializer_list<int64_t> strides) {
  for (const int64_t stride : strides)
    if (rows > 1 && stride != size) return;
  size *= rows;
  rows = 1;
}

}  // namespace fusedops
