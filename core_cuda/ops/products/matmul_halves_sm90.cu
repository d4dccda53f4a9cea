// bf16 products on compute capability 9.x that are added to float32 sums in halves (Matmul::to_halves). Limit: the
// tensor cores, which idle during the epilogue, a fifth of the time for a k of 2048. The epilogue reads and writes 8
// bytes per element. With tiles of 128 columns one warpgroup could multiply meanwhile, but operands that are transposed
// in shared memory then take a fifth longer.
//
// c has the first half of the sums of each warp, and `low` the second. A lane's sums are 16-byte words, adjacent to
// those of the other lanes, in the warp's rows of the tile. Only the last product, which stores rounded rows, shuffles.
#include "core/cuda/tensor_core.cuh"
#include "ops/products/direct_epilogue_sm90.cuh"

namespace fusedops::cuda {
namespace {

struct StoreHalves {
  using Tiles = LargeTiles;
  using Sums = float[1][Tiles::kColumns / 2];  // of a thread: 4 of each 8 columns
  static constexpr int kStagedBytes = 0;
  static constexpr int kRows = 16;  // of a warp; each has one word of every lane
  static_assert(Tiles::kColumns == 32 * 8);

  struct Loads {
    float4 words[kRows];
  };

  uint16_t *c, *low;
  int64_t stride;
  int rows, columns;
  bool adds, rounds;

  Status prepare(const Matmul& product) {
    c = static_cast<uint16_t*>(product.c);
    low = static_cast<uint16_t*>(product.low);
    stride = product.c_stride;
    rows = int(product.m), columns = int(product.n);
    adds = product.adds, rounds = product.rounds;
    return {};
  }

  // Loads the first half.
  __forceinline__ __device__ void load(const WorkTile& tile, Loads& loads) const {
    if (adds && is_whole(tile)) load_half(c + word_of_lane(tile), loads);
  }

  __forceinline__ __device__ void operator()(Sums& sums, const WorkTile& tile, Loads& loads) const {
    if (!is_whole(tile)) return store_part(sums, tile);
    const int64_t at = word_of_lane(tile);
    if (adds) {
      add_half<0>(loads, sums);
      load_half(low + at, loads);
    }
    if (!rounds) store_half<0>(sums, c + at);
    if (adds) add_half<1>(loads, sums);
    if (!rounds) return store_half<1>(sums, low + at);
    __syncwarp();  // all lanes have read the sums that the rounded rows replace
    const int lane = threadIdx.x % 32;
    uint16_t* const to = c + int64_t(warp_row(tile) + lane / 4) * stride + tile.column + lane % 4 * 8;
#pragma unroll
    for (int group = 0; group < Tiles::kColumns / 8; group += 4)
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        float values[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) values[j] = sums[0][(group + j / 2) * 4 + below * 2 + j % 2];
        *reinterpret_cast<uint4*>(to + below * 8 * stride + group * 8) = rounded_in_quad<bf16>(values);
      }
  }

 private:
  static __device__ int warp_row(const WorkTile& tile) { return tile.row + int(threadIdx.x / 32 % 4) * kRows; }

  // True if c has all elements of the warp.
  __device__ bool is_whole(const WorkTile& tile) const {
    return warp_row(tile) + kRows <= rows && tile.column + Tiles::kColumns <= columns;
  }

  // The lane's word in the first row of the warp.
  __device__ int64_t word_of_lane(const WorkTile& tile) const {
    return int64_t(warp_row(tile)) * stride + tile.column + int(threadIdx.x % 32) * 8;
  }

  __forceinline__ __device__ void load_half(const uint16_t* from, Loads& loads) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) loads.words[i] = __ldcg(reinterpret_cast<const float4*>(from + i * stride));
  }

  template <int kHalf>
  static __forceinline__ __device__ void add_half(const Loads& loads, Sums& sums) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float* const values = &sums[0][(kHalf * kRows + i) * 4];
      values[0] += loads.words[i].x, values[1] += loads.words[i].y;
      values[2] += loads.words[i].z, values[3] += loads.words[i].w;
    }
  }

  template <int kHalf>
  __forceinline__ __device__ void store_half(const Sums& sums, uint16_t* to) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float* const values = &sums[0][(kHalf * kRows + i) * 4];
      __stcg(reinterpret_cast<float4*>(to + i * stride), make_float4(values[0], values[1], values[2], values[3]));
    }
  }

  // At the edges of c: of two adjacent sums, c has the first in their place, and `low` the second.
  __forceinline__ __device__ void store_part(const Sums& sums, const WorkTile& tile) const {
    const int lane = threadIdx.x % 32, first_row = warp_row(tile) + lane / 4;
#pragma unroll
    for (int i = 0; i < Tiles::kColumns / 4; ++i) {
      const int row = first_row + i % 2 * 8, column = tile.column + i / 2 * 8 + lane % 4 * 2;
      if (row >= rows || column >= columns) continue;
      auto* const first = reinterpret_cast<float*>(c + row * stride + column);
      auto* const second = reinterpret_cast<float*>(low + row * stride + column);
      float2 pair = {sums[0][2 * i], sums[0][2 * i + 1]};
      if (adds) pair.x += *first, pair.y += *second;
      if (rounds) {
        *reinterpret_cast<uint32_t*>(first) = rounded_pair<bf16>(pair.x, pair.y);
        continue;
      }
      *first = pair.x;
      *second = pair.y;
    }
  }
};

}  // namespace

Status halves_sm90(const Matmul& product, const Context& context) {
  return launch_gemm<bf16, LargeTiles, false, false>(product, StoreHalves(), context);
}

}  // namespace fusedops::cuda
