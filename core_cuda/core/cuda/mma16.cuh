// Warp-level products of 16-bit elements in shared memory: ldmatrix and mma.sync.m16n8k16, accumulated in float32.
//
// Tile::at(row, k) is the index of an element. Its lines of unit stride run along k or along the rows.
#pragma once

#include "core/cuda/tensor_core.cuh"

namespace fusedops::cuda {

template <class T>
struct Mma16 {
  using Element = T;
  using FragmentA = uint32_t[4];
  using FragmentB = uint32_t[2];
  using Accumulator = float[4];
  static constexpr int kM = 16, kN = 8, kK = 16;
  static constexpr int kPad = 8;

  // Loads the four matrices of a fragment: rows 0 and 8 at k = 0, then at k = 8.
  template <class Tile, int kCount>
  static __device__ void load_a(FragmentA (&a)[kCount], const T* from) {
    const int line = threadIdx.x % 8, matrix = threadIdx.x % 32 / 8;
    from += position<Tile>(line, matrix % 2, matrix / 2);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      load_matrices<!kAlongK<Tile>>(a[i][0], a[i][1], a[i][2], a[i][3], from + Tile::at(i * kM, 0));
  }

  // Loads two fragments at a time, of two matrices each: k = 0 and k = 8.
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
    tensor_multiply_add<T>(c, a, b);
  }

 private:
  template <class Tile>
  static constexpr bool kAlongK = Tile::at(0, 1) == 1;

  // The index of `line` of the matrix at row 8 * row8 and k = 8 * k8.
  template <class Tile>
  static __device__ int position(int line, int row8, int k8) {
    return kAlongK<Tile> ? Tile::at(row8 * 8 + line, k8 * 8) : Tile::at(row8 * 8, k8 * 8 + line);
  }
};

}  // namespace fusedops::cuda
