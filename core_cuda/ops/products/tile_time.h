// A model of time for kernels that differ in their tiles alone.
#pragma once

#include <cmath>

#include "ops/products/matmul.h"

namespace fusedops::cuda {

// The time of a product in tiles of m x n, in units of the time of an element of c. Each multiprocessor takes one tile
// at a time, and the last round of tiles takes as long as a full one. This depends on the number of multiprocessors, so
// that only kernels which give the same bits may be chosen by it.
inline double tile_time(const Matmul& product, int m, int n, int multiprocessors) {
  const double tiles = std::ceil(double(product.m) / m) * std::ceil(double(product.n) / n) * double(product.batch);
  return std::ceil(tiles / multiprocessors) * m * n;
}

}  // namespace fusedops::cuda
