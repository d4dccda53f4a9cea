// A warp's products of 16-bit elements: ldmatrix and mma.sync.m16n8k16, summed in float32.
#pragma once

#include <type_traits>

#include "ops/products/matmul_multistage.cuh"

namespace fusedops::cuda {

// Loads four 8 x 8 matrices, or their transposes; lane i points to line i % 8 of matrix i / 8.
template <bool kTransposed>
__device__ void load_matrices(uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3, const void* line) {
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(line));
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"(shared)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"(shared)
                 : "memory");
}

template <class T>
struct Mma16 {
  using Element = T;
  using FragmentA = uint32_t[4];
  using FragmentB = uint32_t[2];
  using Accumulator = float[4];
  static constexpr int kM = 16, kN = 8, kK = 16;
  static constexpr int kPad = 8;

  // A fragment's four matrices: rows 0 and 8 at k = 0, then at k = 8.
  template <class Tile, int kCount>
  static __device__ void load_a(FragmentA (&a)[kCount], const T* from) {
    const int line = threadIdx.x % 8, matrix = threadIdx.x % 32 / 8;
    from += position<Tile>(line, matrix % 2, matrix / 2);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      load_matrices<!kAlongK<Tile>>(a[i][0], a[i][1], a[i][2], a[i][3], from + Tile::at(i * kM, 0));
  }

  // Two fragments at a time, of two matrices each: at k = 0 and k = 8.
  template <class Tile, int kCount>
  static __device__ void load_b(FragmentB (&b)[kCount], const T* from) {
    static_assert(kCount % 2 == 0);
    const int line = threadIdx.x % 8, matrix = threadIdx.x % 32 / 8;
    from += position<Tile>(line, matrix / 2, matrix % 2);
#pragma unroll
    for (int j = 0; j < kCount; j += 2)
      load_matrices<!kAlongK<Tile>>(b[j][0], b[j][1], b[j + 1][0], b[j + 1][1], from + Tile::at(j * kN, 0));
  }

  static __device__ void multiply_add(Accumulator& c, const FragmentA& a, const FragmentB& b) {
    if constexpr (std::is_same_v<T, f16>)
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }

 private:
  template <class Tile>
  static constexpr bool kAlongK = Tile::at(0, 1) == 1;

  // Where `line` of the matrix at row 8 * row8 and k = 8 * k8 begins.
  template <class Tile>
  static __device__ int position(int line, int row8, int k8) {
    return kAlongK<Tile> ? Tile::at(row8 * 8 + line, k8 * 8) : Tile::at(row8 * 8, k8 * 8 + line);
  }
};

// 128 x 128 lets a warp reuse each fragment 4 or 8 times; 64 x 64 gives a small product four times as many blocks.
using LargeTile16 = BlockTile<128, 128, 32, 64, 64, 4, 2>;
using SmallTile16 = BlockTile<64, 64, 32, 32, 32, 4, 4>;

// For copies through registers, of which only one tile can be in flight. Twice the warps halve
// what a thread holds, so that two blocks fit: one multiplies while the other waits for its loads.
using LargeMisalignedTile16 = BlockTile<128, 128, 32, 64, 32, 2, 2>;
using SmallMisalignedTile16 = BlockTile<64, 64, 32, 32, 32, 2, 4>;

// c in T, or in float for a partial product.
template <class Out, class T>
Status small_matmul16(const Matmul& product, const Context& context) {
  return rows_aligned(product) ? launch_multistage<Out, Mma16<T>, SmallTile16, 16>(product, context)
                               : launch_multistage<Out, Mma16<T>, SmallMisalignedTile16, 2>(product, context);
}

template <class T>
Status matmul16(const Matmul& product, const Context& context) {
  if (is_small(product)) return small_matmul16<T, T>(product, context);
  return rows_aligned(product) ? launch_multistage<T, Mma16<T>, LargeTile16, 16>(product, context)
                               : launch_multistage<T, Mma16<T>, LargeMisalignedTile16, 2>(product, context);
}

}  // namespace fusedops::cuda
