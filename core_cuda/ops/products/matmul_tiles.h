// The tiles of 16-bit products on compute capability 9.x. matmul_tiles.cpp has the time model of an H200 that selects
// the tile, and the kernel among those in matmul_dispatch.h. The choice depends on the shape, the layout, the alignment
// and the epilogue alone.
#pragma once

#include <cstdint>

#include "ops/products/matmul.h"

namespace fusedops::cuda {

inline constexpr int kTileDepth = 64;         // elements of k in a k-tile
inline constexpr int kTileLines = 64;         // lines of a TMA box whose lines do not run along k
inline constexpr int kMaxKSplits = 8;         // blocks of a cluster
inline constexpr int kMaxSplitColumns = 128;  // of tiles with several splits
inline constexpr int kMultiprocessors = 132;  // of a large GPU: the order of sums must not depend on the GPU

// The operand tile that the two blocks of a cluster share through multicast.
enum class Sharing { nothing, columns, rows };

// A tile of c in matmul_swap_ab_sm90.cuh.
struct SwapAbChoice {
  int rows = 128, columns = 64;
  int k_splits = 1;
  Sharing sharing = Sharing::nothing;

  static SwapAbChoice of(const Matmul& product);
  double time_ns(const Matmul& product) const;

  // True if blocks loop over tiles. They must store c through TMA, with no epilogue but a bias. Tiles of 64 columns
  // have no shared memory left for that.
  bool is_persistent(const Matmul& product) const;
};

// True if rows are so few that their bits do not depend on their number.
bool is_skinny(const Matmul& product);

}  // namespace fusedops::cuda
