// 16-bit product with an epilogue on compute capability 9.x: c = activation(sum + bias), rounded once. Limit: the
// tensor cores.
//
// Ping-pong tiles of 128 x 128: one warpgroup computes its activations, which take a tenth of a product of depth 4096,
// while the other multiplies.
#pragma once

#include "core/common/activations.h"
#include "ops/products/gemm_sm90.cuh"
#include "ops/products/gemm_store_sm90.cuh"

namespace fusedops::cuda {

// Stores c = activation(z) with z = sum + bias, and z if it is saved.
template <class T>
struct StoreLinear {
  using Stores = PanelStores<T>;
  static constexpr int kStagedBytes = Stores::kBytes;

  CUtensorMap c, z;
  const T* bias;  // null: none
  int columns, activation;
  bool has_z;

  Status prepare(const Matmul& product) {
    bias = static_cast<const T*>(product.epilogue.bias);
    columns = int(product.n);
    activation = product.epilogue.activation;
    has_z = product.epilogue.z != nullptr;
    if (has_z) FUSEDOPS_TRY(Stores::describe(product, product.epilogue.z, &z));
    return Stores::describe(product, product.c, &c);
  }

  __device__ void prefetch_descriptors() const {
    cute::prefetch_tma_descriptor(&c);
    if (has_z) cute::prefetch_tma_descriptor(&z);
  }

  template <class Sums>
  __forceinline__ __device__ void operator()(const Sums& sums, const WorkTile& tile, char* staged) const {
    constexpr int kPanels = 2 * PingPongTiles::kColumns / Stores::kColumns, kValues = Stores::kValues;
    Stores stores(staged, tile.matrix);
    const sm90::Fragment fragment(threadIdx.x % sm90::kWarpgroup);
    const int row = tile.row + fragment.first_row / 16 * 16;
    // Not unrolled: the body has the formulas of all activations.
#pragma unroll 1
    for (int panel = 0; panel < kPanels; ++panel) {
      const int column = tile.column + panel % 2 * Stores::kColumns, panel_row = row + panel / 2 * 64;
      float values[kValues];
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        const float low = panel % 2 ? sums[0][kValues + i] : sums[0][i];
        const float high = panel % 2 ? sums[1][kValues + i] : sums[1][i];
        values[i] = panel / 2 ? high : low;
      }
      // Without a bias a sum of -0 stays -0.
      if (bias) add_bias(values, column + fragment.pair);
      const auto value = [&](int i) { return values[i]; };
      if (has_z) stores.store(z, panel_row, column, value);
      activations::dispatch(activation, [&](auto chosen) {
#pragma unroll
        for (float& x : values) x = decltype(chosen)::at(x).value;
      });
      stores.store(c, panel_row, column, value);
    }
  }

 private:
  // c has a multiple of 8 columns.
  __forceinline__ __device__ void add_bias(float (&values)[Stores::kValues], int column) const {
    T of_columns[Stores::kValues / 2] = {};
#pragma unroll
    for (int i = 0; i < Stores::kValues / 2; ++i)
      if (const int at = column + i / 2 * 8 + i % 2; at < columns) of_columns[i] = bias[at];
#pragma unroll
    for (int i = 0; i < Stores::kValues; ++i) values[i] += to_compute(of_columns[i / 4 * 2 + i % 2]);
  }
};

template <class T, bool kAlongK>
Status launch_linear_sm90(const Matmul& product, const Context& context) {
  return launch_gemm<T, PingPongTiles, true, kAlongK>(product, StoreLinear<T>(), context);
}

// The unit stride of a is along k, as that of x is.
template <class T>
Status linear_sm90(const Matmul& product, const Context& context) {
  return product.b.transposed ? launch_linear_sm90<T, true>(product, context)
                              : launch_linear_sm90<T, false>(product, context);
}

}  // namespace fusedops::cuda
