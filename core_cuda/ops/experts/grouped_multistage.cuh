// Grouped products of any shape and alignment, on the main loop of matmul_multistage.cuh. A block computes one tile.
// Limit: as there; the numbers of gathered rows come from the L1 cache.
#pragma once

#include "core/cuda/launch.cuh"
#include "ops/experts/grouped_kernels.h"
#include "ops/products/matmul_multistage.cuh"

namespace fusedops::cuda {

// Tile of an operand whose lines are rows of a GroupRows, from row `first` of the groups on. The tile begins at
// element `at` of the lines if k runs across them, and has at most `count` rows, or elements of a line.
template <class Mma, int kRows, int kK, int kThreads, int kBytes, bool kAlongK>
struct GroupRowsTile : OperandTile<Mma, kRows, kK, kThreads, kBytes, kAlongK> {
  using Base = OperandTile<Mma, kRows, kK, kThreads, kBytes, kAlongK>;
  using T = typename Mma::Element;

  const int32_t* numbers;  // null: lines are consecutive

  __device__ GroupRowsTile(const GroupRows& operand, int64_t first, int64_t at, int64_t count)
      : Base({static_cast<const T*>(operand.data) + (operand.rows ? 0 : first * operand.stride), operand.stride, 0}, 0,
             at, count),
        numbers(operand.rows ? operand.rows + first : nullptr) {}

  __device__ void fetch(T* to, int64_t at_k, int64_t k) {
    if (!numbers) return Base::fetch(to, at_k, k);
    const int depth = static_cast<int>(max(min(k - at_k, int64_t(kK)), int64_t(0)));
    if constexpr (kAlongK)
      this->loader.fetch_numbered(to, this->data + at_k, this->stride, numbers, this->rows, depth);
    else
      this->loader.fetch_numbered(to, this->data, this->stride, numbers + at_k, depth, this->rows);
  }
};

// Stores a block's sums, from this column of the result on. row(i) is the address of the tile's row i, or null.
template <class Mma, class Tile, class Row>
__device__ void store_sums(const WarpSums<Mma, Tile>& sums, int64_t first_column, int64_t columns, bool stores_pairs,
                           const typename Mma::Element* bias, Row&& row) {
  using T = typename Mma::Element;
  using Sums = WarpSums<Mma, Tile>;
  struct alignas(2 * sizeof(T)) Pair {
    T values[2];
  };
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < Sums::kCountM; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      T* const to = row(Sums::row() + lane / 4 + i * Mma::kM + half * 8);
      if (!to) continue;
#pragma unroll
      for (int j = 0; j < Sums::kCountN; ++j) {
        const int64_t column = first_column + Sums::column() + lane % 4 * 2 + j * Mma::kN;
        Pair pair;
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          compute_t<T> sum = sums.values[i][j][half * 2 + side];
          if (bias && column + side < columns) sum += to_compute(bias[column + side]);
          pair.values[side] = from_compute<T>(sum);
        }
        if (stores_pairs) {
          if (column < columns) *reinterpret_cast<Pair*>(to + column) = pair;
        } else {
          if (column < columns) to[column] = pair.values[0];
          if (column + 1 < columns) to[column + 1] = pair.values[1];
        }
      }
    }
}

struct GroupedCall {
  GroupTiles tiles;
  GroupedMatmul product;
  int64_t first;  // tile of the first block
  int64_t column_tiles;
  bool stores_pairs;
};

template <class Mma, class Tile, int kBytes, bool kAlongK>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) grouped_product_kernel(const GroupedCall call) {
  using T = typename Mma::Element;
  extern __shared__ int4 shared[];
#if __CUDA_ARCH__ >= 900  // in this order, unlike begin_kernel(), for successors that are listed (GroupedMatmul)
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  const GroupedMatmul& product = call.product;
  constexpr int kParts = kGroupTileRows / Tile::kM;  // of a listed tile
  const int64_t block = call.first + blockIdx.x, part = block / call.column_tiles;
  const int64_t column = block % call.column_tiles * Tile::kN;
  if (part / kParts >= *call.tiles.count(product.groups.groups)) return;
  GroupTile tile = call.tiles.tiles[part / kParts];
  const int earlier = int(part % kParts) * Tile::kM;  // rows of other parts
  if (earlier >= tile.end - tile.first) return;
  tile.first += earlier;
  const bool has_group = tile.group < product.groups.groups;  // else the result is 0

  GroupRowsTile<Mma, Tile::kM, Tile::kK, Tile::kThreads, kBytes, true> x(product.x, tile.first, 0,
                                                                         tile.end - tile.first);
  const Matmul::Matrix& matrix = product.b;
  OperandTile<Mma, Tile::kN, Tile::kK, Tile::kThreads, kBytes, kAlongK> b(
      {static_cast<const T*>(matrix.data), matrix.stride, matrix.batch_stride}, has_group ? tile.group : 0, column,
      product.n);
  const auto sums = accumulate<Mma, Tile>(reinterpret_cast<T*>(shared), x, b, has_group ? product.k : 0);
  const T* const bias = static_cast<const T*>(product.bias);
  store_sums(sums, column, product.n, call.stores_pairs, bias && has_group ? bias + tile.group * product.n : nullptr,
             [&](int i) -> T* {
               if (i >= tile.end - tile.first) return nullptr;
               const int64_t r = int64_t(tile.first) + i;
               return static_cast<T*>(product.y) + (product.y_rows ? product.y_rows[r] : r) * product.n;
             });
}

struct GroupedGradientCall {
  GroupTiles tiles;
  GroupedGradient product;
  int64_t first;  // tile of the first block
  int64_t tiles_m, tiles_n;
  bool stores_pairs;
};

template <class Mma, class Tile, int kBytes>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    grouped_gradient_kernel(const GroupedGradientCall call) {
  using T = typename Mma::Element;
  extern __shared__ int4 shared[];
  begin_kernel();
  const GroupedGradient& product = call.product;
  const TilePosition tile(call.first + blockIdx.x, call.tiles_m, call.tiles_n);
  const int64_t first = call.tiles.bounds[tile.batch], end = call.tiles.bounds[tile.batch + 1];
  const int64_t row = tile.m * Tile::kM, column = tile.n * Tile::kN;
  GroupRowsTile<Mma, Tile::kM, Tile::kK, Tile::kThreads, kBytes, false> a(product.a, first, row, product.m);
  GroupRowsTile<Mma, Tile::kN, Tile::kK, Tile::kThreads, kBytes, false> b(product.b, first, column, product.n);
  const auto sums = accumulate<Mma, Tile>(reinterpret_cast<T*>(shared), a, b, end - first);
  T* const c = static_cast<T*>(product.c) + tile.batch * product.m * product.n;
  store_sums(sums, column, product.n, call.stores_pairs, nullptr,
             [&](int i) { return row + i < product.m ? c + (row + i) * product.n : nullptr; });
}

// Elements of an operand's tile in either direction of its lines.
template <class Mma, class Tile, int kRows>
constexpr int kMaxOperandSize = std::max<int>(OperandTile<Mma, kRows, Tile::kK, Tile::kThreads, 16, true>::kSize,
                                              OperandTile<Mma, kRows, Tile::kK, Tile::kThreads, 16, false>::kSize);

// Launches the kernel for `tiles` tiles, in parts that fit a grid.
template <class Mma, class Tile, class Call>
Status launch_grouped(const Context& context, void (*kernel)(Call), int64_t tiles, Call call) {
  constexpr int64_t kMaxBlocks = INT32_MAX;
  constexpr int kSize = kMaxOperandSize<Mma, Tile, Tile::kM> + kMaxOperandSize<Mma, Tile, Tile::kN>;
  constexpr int kBytes = Tile::kStages * kSize * int(sizeof(typename Mma::Element));
  for (call.first = 0; call.first < tiles; call.first += kMaxBlocks)
    FUSEDOPS_TRY(launch(context, kernel, Grid{std::min(tiles - call.first, kMaxBlocks), Tile::kThreads, kBytes}, call));
  return {};
}

template <class T>
bool stores_pairs(const void* result, int64_t columns) {
  return columns % 2 == 0 && reinterpret_cast<uintptr_t>(result) % (2 * sizeof(T)) == 0;
}

template <class Mma, class Tile, int kBytes>
Status run_grouped(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context) {
  constexpr int kParts = kGroupTileRows / Tile::kM;
  const int64_t column_tiles = ceil_div(product.n, Tile::kN);
  const GroupedCall call = {tiles, product, 0, column_tiles, stores_pairs<typename Mma::Element>(product.y, product.n)};
  const auto kernel = product.b.transposed ? grouped_product_kernel<Mma, Tile, kBytes, true>
                                           : grouped_product_kernel<Mma, Tile, kBytes, false>;
  return launch_grouped<Mma, Tile>(context, kernel, kParts * GroupTiles::max_count(product.groups) * column_tiles,
                                   call);
}

template <class Mma, class Tile, int kBytes>
Status run_grouped(const GroupedGradient& product, const GroupTiles& tiles, const Context& context) {
  const int64_t tiles_m = ceil_div(product.m, Tile::kM), tiles_n = ceil_div(product.n, Tile::kN);
  const GroupedGradientCall call = {tiles,   product, 0,
                                    tiles_m, tiles_n, stores_pairs<typename Mma::Element>(product.c, product.n)};
  return launch_grouped<Mma, Tile>(context, grouped_gradient_kernel<Mma, Tile, kBytes>,
                                   product.groups.groups * tiles_m * tiles_n, call);
}

// Copies 16 bytes at a time if all rows are aligned, and single elements otherwise.
template <class Mma, class Tile, class MisalignedTile = Tile, class Product>
Status run_aligned(const Product& product, const GroupTiles& tiles, const Context& context) {
  constexpr int kElement = sizeof(typename Mma::Element);
  return has_aligned_rows(representative(product))
             ? run_grouped<Mma, Tile, 16>(product, tiles, context)
             : run_grouped<Mma, MisalignedTile, kElement>(product, tiles, context);
}

}  // namespace fusedops::cuda
