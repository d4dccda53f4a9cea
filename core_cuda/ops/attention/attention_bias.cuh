// Tiles of the gradient of a bias, for the kernels that compute it. Each kernel sums the gradients of the scores that
// share an element in a fixed order: over heads, over tiles of queries and keys, then within a tile.
#pragma once

#include "ops/attention/attention_tiles.cuh"

namespace fusedops::cuda {

inline int64_t bias_tiles(const BiasMatrices& matrices, int tile_rows, int tile_columns) {
  return matrices.count * tiles_of(matrices.rows, tile_rows) * tiles_of(matrices.columns, tile_columns);
}

// A tile of a matrix of the bias, with the queries and keys whose scores it is added to.
struct BiasTile {
  __device__ BiasTile(const Attention& call, const BiasMatrices& matrices, int64_t index, int tile_rows,
                      int tile_columns) {
    const int column_tiles = (matrices.columns + tile_columns - 1) / tile_columns;
    const int row_tiles = (matrices.rows + tile_rows - 1) / tile_rows;
    const int column = static_cast<int>(index % column_tiles) * tile_columns;
    const int row = static_cast<int>(index / column_tiles % row_tiles) * tile_rows;
    place = index / column_tiles / row_tiles * matrices.size;
    queries = {row, matrices.has_rows ? min(row + tile_rows, call.queries) : call.queries};
    keys = {column, call.bias.has_columns() ? min(column + tile_columns, call.keys) : call.keys};
  }

  int64_t place;  // of the matrix
  Range queries, keys;
};

// Sums a tile over the rows or columns that the bias lacks, and stores it. at(row, column) is an element of the tile in
// shared memory, which all threads have written; elements without a visible score are zeros.
template <class T, class At>
__device__ void store_bias_tile(const Attention& call, const BiasMatrices& matrices, const BiasTile& tile,
                                int tile_rows, int tile_columns, int threads, At at) {
  const bool has_columns = call.bias.has_columns();
  if (!matrices.has_rows) {
    for (int column = threadIdx.x; column < tile_columns; column += threads)
      for (int row = 1; row < tile_rows; ++row) at(0, column) += at(row, column);
    __syncthreads();
  }
  const int rows = matrices.has_rows ? tile.queries.end - tile.queries.begin : 1;
  if (!has_columns) {
    for (int row = threadIdx.x; row < rows; row += threads)
      for (int column = 1; column < tile_columns; ++column) at(row, 0) += at(row, column);
    __syncthreads();
  }
  const int columns = has_columns ? tile.keys.end - tile.keys.begin : 1;
  for (int i = threadIdx.x; i < rows * columns; i += threads) {
    const int row = i / columns, column = i % columns;
    const int64_t to = tile.place + int64_t(tile.queries.begin + row) * matrices.columns + tile.keys.begin + column;
    if (call.bias.is_f32())
      static_cast<float*>(call.dbias)[to] = static_cast<float>(at(row, column));
    else
      static_cast<T*>(call.dbias)[to] = from_compute<T>(at(row, column));
  }
}

}  // namespace fusedops::cuda
