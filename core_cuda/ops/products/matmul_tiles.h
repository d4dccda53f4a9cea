// Which kernel and which tiles a product of 16 bits takes on compute capability 9.x: those with the least time by a
// model of an H200. The choice depends on the shape, the layout, the alignment and the epilogue alone.
#pragma once

#include <cstdint>

#include "ops/products/matmul.h"

namespace fusedops::cuda {

inline constexpr int kTileDepth = 64;            // of k: a step of all these kernels
inline constexpr int kTileLines = 64;            // of a box whose lines do not run along k
inline constexpr int kMostParts = 8;             // of k: the blocks of a cluster
inline constexpr int kMostColumnsOfParts = 128;  // of tiles whose k may have several parts
inline constexpr int kMultiprocessors = 132;     // of a large GPU: the order of sums does not follow the GPU at hand

// What the blocks of a pair have in common, and read only once.
enum class Sharing { nothing, columns, rows };

// A tile of c in matmul_few_tiles_sm90.cuh.
struct FewTilesChoice {
  int rows = 128, columns = 64;
  int parts = 1;  // of k
  Sharing sharing = Sharing::nothing;

  static FewTilesChoice of(const Matmul& product);
  double nanoseconds(const Matmul& product) const;

  // Whether blocks go from tile to tile: if they can write c through TMA, with a bias at most. Those of 64 columns have
  // no room for it.
  bool stays(const Matmul& product) const;
};

// matmul_few_tiles_sm90.cuh; matmul_split_k.cu; linear_sm90.cuh, where the warpgroups of a block take turns;
// matmul_sm90.cuh.
enum class ProductKernel { few_tiles, splits, turns, large };

// Of a single product whose a and b TMA can read; `has_large`: it can write c, too.
ProductKernel product_kernel(const Matmul& product, const FewTilesChoice& few, bool has_large);

}  // namespace fusedops::cuda
