// 16-bit products with large tiles on compute capability 9.x (gemm_sm90.cuh). c, the rounded sums or the sums
// themselves, is stored through TMA. Limit: the tensor cores.
#pragma once

#include "ops/products/gemm_sm90.cuh"
#include "ops/products/gemm_store_sm90.cuh"

namespace fusedops::cuda {

// Stores the rounded sums.
template <class T, class Tiles>
struct StoreProduct {
  using Stores = PanelStores<T>;
  static constexpr int kStagedBytes = Stores::kBytes, kPanels = Tiles::kColumns / Stores::kColumns;
  static_assert(kPanels % 2 == 0);

  CUtensorMap c;

  Status prepare(const Matmul& product) { return Stores::describe(product, product.c, &c); }

  __device__ void prefetch_descriptors() const { cute::prefetch_tma_descriptor(&c); }

  template <class Sums>
  __forceinline__ __device__ void operator()(const Sums& sums, const WorkTile& tile, char* staged) const {
    Stores stores(staged, tile.matrix);
    const int row = tile.row + threadIdx.x / 32 % 4 * Stores::kRows;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
      stores.store(c, row, tile.column + panel * Stores::kColumns,
                   [&](int i) { return sums[0][panel * Stores::kValues + i]; });
  }
};

// Stores the sums, added to c if `adds`.
template <class Tiles>
struct StoreSums {
  using Stores = PanelStores<float>;
  static constexpr int kStagedBytes = Stores::kBytes, kPanels = Tiles::kColumns / Stores::kColumns;
  static_assert(kPanels % 2 == 0);

  CUtensorMap map;
  const float* c;
  int64_t c_stride;
  int rows, columns;
  bool adds;

  Status prepare(const Matmul& product) {
    c = static_cast<const float*>(product.c);
    c_stride = product.c_stride;
    rows = int(product.m), columns = int(product.n);
    adds = product.adds;
    return Stores::describe(product, product.c, &map);
  }

  __device__ void prefetch_descriptors() const { cute::prefetch_tma_descriptor(&map); }

  // Prefetches the tile of c into L2 during the last products.
  __forceinline__ __device__ void prefetch(const WorkTile& tile) const {
    if (!adds) return;
#pragma unroll 1
    for (int row = 0; row < Tiles::kRows; row += Stores::kRows)
#pragma unroll 1
      for (int column = 0; column < Tiles::kColumns; column += Stores::kColumns)
        cute::SM90_TMA_LOAD_3D::PREFETCH::copy(&map, 2 * (tile.column + column), tile.row + row, tile.matrix);
  }

  template <class Sums>
  __forceinline__ __device__ void operator()(const Sums& sums, const WorkTile& tile, char* staged) const {
    Stores stores(staged, tile.matrix);
    const int row = tile.row + threadIdx.x / 32 % 4 * Stores::kRows;
    const auto store = [&](int panel, auto&& value) {
      stores.store(map, row, tile.column + panel * Stores::kColumns, value);
    };
    if (!adds) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
        store(panel, [&](int i) { return sums[0][panel * Stores::kValues + i]; });
      return;
    }
    Panel panels[2];
    load(tile, 0, panels[0]);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      if (panel + 1 < kPanels) load(tile, panel + 1, panels[(panel + 1) % 2]);
      store(panel, [&](int i) { return sums[0][panel * Stores::kValues + i] + panels[panel % 2][i]; });
    }
  }

 private:
  using Panel = float[Stores::kValues];

  // Loads the thread's elements of a panel of c, which has a multiple of 8 columns.
  __forceinline__ __device__ void load(const WorkTile& tile, int panel, Panel& values) const {
    const sm90::Fragment fragment(threadIdx.x % sm90::kWarpgroup);
    const int column = tile.column + panel * Stores::kColumns;
#pragma unroll
    for (int i = 0; i < Stores::kValues; i += 2) {
      const int row = tile.row + fragment.row(i / 2 % 2), at = column + fragment.column(i);
      float2 pair = {};
      if (row < rows && at < columns)
        pair = *reinterpret_cast<const float2*>(c + (int64_t(tile.matrix) * rows + row) * c_stride + at);
      values[i] = pair.x, values[i + 1] = pair.y;
    }
  }
};

// The unit stride of a is along k unless a is transposed; that of b is if b is transposed.
template <class T, class Tiles, class Store>
Status matmul_sm90(const Matmul& product, const Context& context) {
  const auto launch_with = [&]<bool kRowsAlongK, bool kAlongK>() {
    return launch_gemm<T, Tiles, kRowsAlongK, kAlongK>(product, Store(), context);
  };
  if (product.a.transposed)
    return product.b.transposed ? launch_with.template operator()<false, true>()
                                : launch_with.template operator()<false, false>();
  return product.b.transposed ? launch_with.template operator()<true, true>()
                              : launch_with.template operator()<true, false>();
}

}  // namespace fusedops::cuda
