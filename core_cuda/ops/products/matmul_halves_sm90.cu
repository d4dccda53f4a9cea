// bf16 products on compute capability 9.x that are added to float32 sums in halves (Matmul::to_halves). Limit: the
// tensor cores, or memory bandwidth: the epilogue reads and writes 8 bytes per element, as much as a k of about 800
// takes to multiply.
#include "core/cuda/tensor_core.cuh"
#include "ops/products/direct_epilogue_sm90.cuh"
#include "ops/products/gemm_store_sm90.cuh"

namespace fusedops::cuda {
namespace {

// Two adjacent sums and their halves: word 0 has the first element in its lower 16 bits.
struct PairOfHalves {
  uint32_t upper, lower;

  static __device__ PairOfHalves of(float first, float second) {
    const uint32_t a = __float_as_uint(first), b = __float_as_uint(second);
    return {__byte_perm(a, b, 0x7632), __byte_perm(a, b, 0x5410)};
  }
  __device__ float first() const { return __uint_as_float(__byte_perm(lower, upper, 0x5410)); }
  __device__ float second() const { return __uint_as_float(__byte_perm(lower, upper, 0x7632)); }
};

struct StoreHalves {
  static constexpr int kStagedBytes = 0;

  CUtensorMap upper_map, lower_map;  // for the prefetch
  uint16_t *upper, *lower;
  int64_t stride;
  int rows, columns;
  bool adds, rounds;

  Status prepare(const Matmul& product) {
    upper = static_cast<uint16_t*>(product.c);
    lower = static_cast<uint16_t*>(product.low);
    stride = product.c_stride;
    rows = int(product.m), columns = int(product.n);
    adds = product.adds, rounds = product.rounds;
    FUSEDOPS_TRY(PanelStores<bf16>::describe(product, product.c, &upper_map));
    return PanelStores<bf16>::describe(product, product.low, &lower_map);
  }

  // Prefetches the halves of a tile into L2 during the last products.
  __forceinline__ __device__ void prefetch(const WorkTile& tile) const {
    using Panel = PanelStores<bf16>;
    if (!adds) return;
#pragma unroll 1
    for (int row = 0; row < PingPongTiles::kRows; row += Panel::kRows)
#pragma unroll 1
      for (int column = 0; column < PingPongTiles::kColumns; column += Panel::kColumns) {
        cute::SM90_TMA_LOAD_3D::PREFETCH::copy(&upper_map, tile.column + column, tile.row + row, tile.matrix);
        cute::SM90_TMA_LOAD_3D::PREFETCH::copy(&lower_map, tile.column + column, tile.row + row, tile.matrix);
      }
  }

  // Each lane of a quad loads and stores 8 adjacent elements of each 32.
  __forceinline__ __device__ void operator()(const SumPlace::Sums& sums, const WorkTile& tile, char*) const {
    const int first_column = tile.column + int(threadIdx.x % 4) * 8;
#pragma unroll 1
    for (int i = 0; i < SumPlace::kRows; ++i) {
      const int row = tile.row + SumPlace::first_row() + SumPlace::row(i);
      const int64_t first = int64_t(row) * stride + first_column;
      const auto exists = [&](int group) { return row < rows && first_column + group * 8 < columns; };
      uint4 uppers[kQuadGroups] = {}, lowers[kQuadGroups] = {};
      if (adds) {
#pragma unroll
        for (int group = 0; group < SumPlace::kGroups; group += 4) {
          if (!exists(group)) continue;
          uppers[group / 4] = *reinterpret_cast<const uint4*>(upper + first + group * 8);
          lowers[group / 4] = *reinterpret_cast<const uint4*>(lower + first + group * 8);
        }
      }
      SumPlace::Row of_row;
      SumPlace::copy_row(sums, i, of_row);
#pragma unroll
      for (int group = 0; group < SumPlace::kGroups; group += 4) {
        float values[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) values[j] = of_row[group * 2 + j];
        uint32_t high[4], low[4];
        if (adds) {
          spread(uppers[group / 4], high);
          spread(lowers[group / 4], low);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const PairOfHalves pair = {high[j], low[j]};
            values[2 * j] += pair.first();
            values[2 * j + 1] += pair.second();
          }
        }
        if (rounds) {
          store(rounded_in_quad<bf16>(values), upper + first + group * 8, exists(group));
          continue;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const auto pair = PairOfHalves::of(values[2 * j], values[2 * j + 1]);
          high[j] = pair.upper, low[j] = pair.lower;
        }
        store(gathered(high), upper + first + group * 8, exists(group));
        store(gathered(low), lower + first + group * 8, exists(group));
      }
    }
  }

 private:
  static constexpr int kQuadGroups = SumPlace::kGroups / 4;

  // From 8 adjacent elements to two of each 8 of the quad's 32 columns, and back.
  static __forceinline__ __device__ void spread(const uint4& adjacent, uint32_t (&words)[4]) {
    words[0] = adjacent.x, words[1] = adjacent.y, words[2] = adjacent.z, words[3] = adjacent.w;
    transpose_in_quad(words);
  }
  static __forceinline__ __device__ uint4 gathered(uint32_t (&words)[4]) {
    transpose_in_quad(words);
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  static __forceinline__ __device__ void store(const uint4& words, uint16_t* to, bool exists) {
    if (exists) *reinterpret_cast<uint4*>(to) = words;
  }
};

}  // namespace

Status halves_sm90(const Matmul& product, const Context& context) {
  return launch_gemm<bf16, PingPongTiles, false, false>(product, StoreHalves(), context);
}

}  // namespace fusedops::cuda
