// The tiles of 16-bit products on compute capability 9.x. matmul_tiles.cpp has the time model of an H200 that selects
// the tile, and the kernel among those in matmul_dispatch.h. The choice depends on the shape, the layout, the alignment
// and the epilogue alone.
#pragma once

#include <cstdint>

#include "ops/products/matmul.h"

namespace fusedops::cuda {

inline constexpr int kTileDepth = 64;         // of k: the k-tile of all these kernels
inline constexpr int kTileLines = 64;         // of a box whose lines do not run along k
inline constexpr int kMaxKSplits = 8;         // of k: the blocks of a cluster
inline constexpr int kMaxSplitColumns = 128;  // of tiles whose k may have several parts
inline constexpr int kMultiprocessors = 132;  // of a large GPU: the order of sums does not follow the GPU at hand

// What the blocks of a pair have in common, and read only once.
enum class Sharing { nothing, columns, rows };

// A tile of c in matmul_few_tiles_sm90.cuh.
struct FewTilesChoice {
  int rows = 128, columns = 64;
  int k_splits = 1;  // of k
  Sharing sharing = Sharing::nothing;

  static FewTilesChoice of(const Matmul& product);
  double time_ns(const Matmul& product) const;

  // Whether blocks go from tile to tile: if they can write c through TMA, with a bias at most. Those of 64 columns have
  // no room for it.
  bool is_persistent(const Matmul& product) const;
};

}  // namespace fusedops::cuda
