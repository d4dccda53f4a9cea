// 16-bit gated_linear on compute capability 9.x: one product of x with both weights, fused with the gate. Limit: the
// tensor cores.
//
// A tile has 64 columns of y, and so 64 columns of sums of each weight: a thread holds gate and up of its results. The
// schedule is ping-pong, as in linear_sm90.cuh. Each weight has a TMA descriptor, and each block of a pair copies one
// weight for both.
#pragma once

#include "core/common/activations.h"
#include "ops/products/direct_epilogue_sm90.cuh"
#include "ops/products/gated_linear.h"

namespace fusedops::cuda {

using GatedTiles = TileShape<2 * kGatedColumns, Schedule::ping_pong, true, 2>;

// Stores y, and gate and up if they are saved.
template <class T>
struct StoreGated {
  const T *gate_bias, *up_bias;
  T *y, *gate, *up;  // gate and up: null if not saved
  int rows, columns, activation;

  static constexpr int kStagedBytes = 0;

  __forceinline__ __device__ void operator()(const SumPlace::Sums& sums, const WorkTile& tile, char*) const {
    constexpr int kGroups = kGatedColumns / 8;
    const int row = tile.row + SumPlace::first_row();
#pragma unroll 1
    for (int i = 0; i < SumPlace::kRows; ++i) {
      SumPlace::Row of_row;
      SumPlace::copy_row(sums, i, of_row);
#pragma unroll
      for (int group = 0; group < kGroups; group += 4) {  // 32 columns at a time
        float left[8], right[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          left[j] = of_row[group * 2 + j];
          right[j] = of_row[(kGroups + group) * 2 + j];
        }
        finish(left, right, row + SumPlace::row(i), tile.column + group * 8);
      }
    }
  }

 private:
  __forceinline__ __device__ void finish(float (&left)[8], float (&right)[8], int row, int column) const {
    add(left, gate_bias, column);
    add(right, up_bias, column);
    if (gate) store(left, gate, row, column);
    if (up) store(right, up, row, column);
    activations::dispatch(activation, [&](auto chosen) {
#pragma unroll
      for (int i = 0; i < 8; ++i) left[i] = decltype(chosen)::at(left[i]).value * right[i];
    });
    store(left, y, row, column);
  }

  __forceinline__ __device__ void add(float (&sums)[8], const T* bias, int column) const {
    if (!bias) return;
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      const int from = column + group * 8 + threadIdx.x % 4 * 2;
      if (from >= columns) continue;
      sums[group * 2] += to_compute(bias[from]);
      sums[group * 2 + 1] += to_compute(bias[from + 1]);
    }
  }

  __forceinline__ __device__ void store(const float (&values)[8], T* to, int row, int column) const {
    const uint4 words = rounded_in_quad<T>(values);
    column += threadIdx.x % 4 * 8;
    if (row < rows && column < columns) *reinterpret_cast<uint4*>(to + int64_t(row) * columns + column) = words;
  }
};

template <class T, bool kAlongK>
Status launch_gated_sm90(const GatedLinear& call, const Context& context) {
  StoreGated<T> epilogue = {};
  epilogue.gate_bias = static_cast<const T*>(call.gate_bias);
  epilogue.up_bias = static_cast<const T*>(call.up_bias);
  epilogue.y = static_cast<T*>(call.y);
  epilogue.gate = static_cast<T*>(call.gate);
  epilogue.up = static_cast<T*>(call.up);
  epilogue.rows = int(call.rows);
  epilogue.columns = int(call.columns);
  epilogue.activation = call.activation;
  return launch_gemm<T, GatedTiles, true, kAlongK>(call.gate_product(call.y), epilogue, context,
                                                   call.up_product(call.y).b);
}

template <class T>
Status gated_sm90(const GatedLinear& call, const Context& context) {
  return call.gate_weight.transposed ? launch_gated_sm90<T, true>(call, context)
                                     : launch_gated_sm90<T, false>(call, context);
}

}  // namespace fusedops::cuda
