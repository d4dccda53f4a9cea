// A model of time for kernels that differ in their tiles alone.
#pragma once

#include <cmath>

#include "ops/products/matmul.h"

namespace fusedops::cuda {

// The time of a product in tiles of m x n: multiprocessors that work on tiles at the same time end together, and the
// last ones may be few. The unit is the time of an element of c. The choice between kernels that give the same bits may
// follow from it, though it depends on the GPU's number of multiprocessors.
inline double tile_time(const Matmul& product, int m, int n, int multiprocessors) {
  const double tiles = std::ceil(double(product.m) / m) * std::ceil(double(product.n) / n) * double(product.batch);
  return std::ceil(tiles / multiprocessors) * m * n;
}

}  // namespace fusedops::cuda
