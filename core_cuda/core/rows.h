// What the kernels over rows agree on, on the CPU and on the GPU: how sums over rows are cut into slabs.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fusedops {

// The gradient of a weight is a sum over rows. Each slab of rows is summed one after the other, then the slabs' sums
// are added pairwise. The cut follows from the number of rows alone, and so do the bits.
struct Slabs {
  int64_t rows = 0;  // in a slab; the last one may have fewer
  int64_t count = 0;
};

// At most 64 rows in a slab keep the error of the sequential part below that of the pairwise one. A multiple of 132
// slabs, if there are enough rows, leaves no multiprocessor of an H100 or H200 idle in the last round.
inline Slabs slabs_of(int64_t rows) {
  constexpr int64_t kMostRows = 64, kMultiprocessors = 132;
  if (rows == 0) return {};
  const int64_t rounds = (rows + kMostRows * kMultiprocessors - 1) / (kMostRows * kMultiprocessors);
  const int64_t size = (rows + rounds * kMultiprocessors - 1) / (rounds * kMultiprocessors);
  return {size, (rows + size - 1) / size};
}

}  // namespace fusedops
