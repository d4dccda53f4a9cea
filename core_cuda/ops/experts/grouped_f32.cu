// float32 grouped products without tensor cores, which would round the inputs to TF32. Limit: shared memory, of which
// a thread reads 12 elements for 32 multiply-adds.
#include "ops/experts/grouped_multistage.cuh"

namespace fusedops::cuda {
namespace {

// A product of one element of k. The elements of a thread are those that it has in Mma16.
struct Mma32 {
  using Element = float;
  static constexpr int kM = 16, kN = 8, kK = 1;
  using FragmentA = float[2];
  using FragmentB = float[2];
  using Accumulator = float[4];
  static constexpr int kPad = 4;

  template <class Tile, int kCount>
  static __device__ void load_a(FragmentA (&a)[kCount], const float* from) {
    const int row = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      a[i][0] = from[Tile::at(row + i * kM, 0)];
      a[i][1] = from[Tile::at(row + i * kM + 8, 0)];
    }
  }

  template <class Tile, int kCount>
  static __device__ void load_b(FragmentB (&b)[kCount], const float* from) {
    const int row = threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      b[j][0] = from[Tile::at(row + j * kN, 0)];
      b[j][1] = from[Tile::at(row + j * kN + 1, 0)];
    }
  }

  static __device__ void multiply_add(Accumulator& c, const FragmentA& a, const FragmentB& b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = __fmaf_rn(a[i / 2], b[i % 2], c[i]);
  }
};

using Tile32 = BlockTile<64, 64, 16, 32, 32, 4, 3>;

}  // namespace

Status grouped_f32(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context) {
  return run_aligned<Mma32, Tile32>(product, tiles, context);
}

Status grouped_f32(const GroupedGradient& product, const GroupTiles& tiles, const Context& context) {
  return run_aligned<Mma32, Tile32>(product, tiles, context);
}

}  // namespace fusedops::cuda
