// The bias of scores on compute capability 9.x in tiles of shared memory, which a producer warp loads by TMA. A tile
// has room for 16 bits per score: one in float32 comes in halves.
#pragma once

#include "core/cuda/tensor_core.cuh"
#include "ops/attention/attention_sm90.cuh"

namespace fusedops::cuda::sm90 {

// The bias as a kernel's parameter. Its columns are of 16 bits: a key has two of them in float32.
struct BiasLoads {
  // Describes boxes of kRows queries and 64 columns of [matrix, query, column]. The bias has columns, and its rows
  // begin at multiples of 16 bytes.
  template <int kRows>
  static Status of(const Attention& call, BiasLoads* loads) {
    const BiasMatrices matrices(call);
    loads->matrix_size = matrices.size, loads->width = call.bias.is_f32() ? 2 : 1, loads->has_rows = matrices.has_rows;
    loads->is_batch_inner = call.sequences > 1 && call.bias_place(1, 0) == call.bias_place(0, 0);
    const auto columns = static_cast<cuuint64_t>(matrices.columns) * loads->width;
    const Boxes<3> boxes = {call.bias.data(),
                            {columns, cuuint64_t(matrices.rows), cuuint64_t(matrices.count)},
                            {columns * 2, columns * 2 * matrices.rows},
                            {64, kRows, 1}};
    return boxes.describe(&loads->map);
  }

  CUtensorMap map;
  int64_t matrix_size;  // elements
  int width;            // columns of a key
  bool has_rows;        // false: queries share a row, the first of a tile
  bool is_batch_inner;  // true if sequences share the bias: their blocks should run at the same time
};

// Stands for members that only kernels with tiles of a bias have.
struct NoBias {};

// Tiles of the bias in shared memory.
template <class T, class Tile, int kCount>
struct BiasTiles {
  alignas(1024) T at[kCount][Tile::kSize];
};

// Loads kRows queries and kColumns columns, from `column` on, into a stage of a ring. Called by a warp.
template <class Tile, int kRows, int kColumns, class T, int kStages>
__device__ void load_bias(const BiasLoads& loads, int64_t place, Ring<kStages>& ring, const RingState<kStages>& state,
                          int query, int column, T* tile) {
  const bool is_leader = threadIdx.x % 32 == 0;
  uint64_t* const barrier = ring.acquire(state, is_leader, kRows * kColumns * sizeof(T));
  if (!is_leader) return;
  const auto matrix = static_cast<int>(place / loads.matrix_size);
#pragma unroll
  for (int panel = 0; panel < kColumns / 64; ++panel)
    cute::SM90_TMA_LOAD_3D::copy(&loads.map, barrier, kCacheHint, tile + panel * 64 * kRows, column + panel * 64,
                                 loads.has_rows ? query : 0, matrix);
}

template <class T>
__device__ float2 numbers_of(uint32_t pair) {
  alignas(4) T two[2];
  *reinterpret_cast<uint32_t*>(two) = pair;
  return {to_compute(two[0]), to_compute(two[1])};
}

// Numbers of a bias, in units of products.
struct BiasUnit {
  __device__ explicit BiasUnit(float factor)
      : unit(static_cast<float>(kLog2E) / factor),
        lowest(-0.5f * std::numeric_limits<float>::max() / fmaxf(unit, static_cast<float>(kLog2E))) {}

  // Adds numbers to products. Minus infinity masks, and finite numbers stay finite. Returns true if a number of the
  // warp needed that care.
  template <int kValues>
  __forceinline__ __device__ bool add(const float (&numbers)[kValues], float (&products)[kValues]) const {
    float least = numbers[0];
#pragma unroll
    for (int i = 1; i < kValues; ++i) least = fminf(least, numbers[i]);
    const bool needs_care = __any_sync(0xffffffff, least < lowest);
    if (needs_care) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        const float finite = numbers[i] < lowest ? lowest : numbers[i];
        products[i] = numbers[i] == -INFINITY ? -INFINITY : fmaf(finite, unit, products[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kValues; ++i) products[i] = fmaf(numbers[i], unit, products[i]);
    }
    return needs_care;
  }

  float unit;    // of a score, in units of products
  float lowest;  // finite in units of products and of exponents
};

// Loads a lane's numbers of 16 rows, from `row` on, and 32 keys, from `column` on: those of an accumulator.
template <class Tile, class T>
__forceinline__ __device__ void load_bias_rows(const BiasLoads& loads, const T* tile, int row, int column,
                                               float (&numbers)[16]) {
  const int lane = threadIdx.x % 32;
  if (loads.width == 2) {
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      const int at = loads.has_rows ? row + lane / 4 + i / 2 % 2 * 8 : 0;
      const auto two = *reinterpret_cast<const float2*>(tile + Tile::at(at, column + i / 4 * 16 + lane % 4 * 4));
      numbers[i] = two.x, numbers[i + 1] = two.y;
    }
    return;
  }
  const int at = loads.has_rows ? row + lane % 16 : 0;
#pragma unroll
  for (int i = 0; i < 16; i += 8) {
    uint32_t words[4];
    load_matrices<false>(words[0], words[1], words[2], words[3], tile + Tile::at(at, column + i * 2 + lane / 16 * 8));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 two = numbers_of<T>(words[j]);
      numbers[i + 2 * j] = two.x, numbers[i + 2 * j + 1] = two.y;
    }
  }
}

// The same for an accumulator [keys, queries]: 32 rows, and 16 keys.
template <class Tile, class T>
__forceinline__ __device__ void load_bias_columns(const BiasLoads& loads, const T* tile, int row, int column,
                                                  float (&numbers)[16]) {
  const int lane = threadIdx.x % 32;
  if (loads.width == 2) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int at = loads.has_rows ? row + i / 4 * 8 + lane % 4 * 2 + i % 2 : 0;
      numbers[i] = *reinterpret_cast<const float*>(tile + Tile::at(at, column + (lane / 4 + i / 2 % 2 * 8) * 2));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 16; i += 8) {
    uint32_t words[4];
    const int at = loads.has_rows ? row + i * 2 + lane / 16 * 8 + lane % 8 : 0;
    load_matrices<true>(words[0], words[1], words[2], words[3], tile + Tile::at(at, column + lane / 8 % 2 * 8));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 two = numbers_of<T>(words[j]);
      numbers[i + 2 * j] = two.x, numbers[i + 2 * j + 1] = two.y;
    }
  }
}

}  // namespace fusedops::cuda::sm90
