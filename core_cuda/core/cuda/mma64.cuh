// Warp-level products of float64 elements in shared memory, on tensor cores. Tile: as in mma16.cuh.
#pragma once

#include <cuda_runtime.h>

namespace fusedops::cuda {

struct Mma64 {
  using Element = double;
  static constexpr int kM = 16, kN = 8, kK = 4;
  using FragmentA = double[2];
  using FragmentB = double;
  using Accumulator = double[4];
  static constexpr int kPad = 4;

  // Thread 4 * g + t holds rows g and g + 8 at k = t.
  template <class Tile, int kCount>
  static __device__ void load_a(FragmentA (&a)[kCount], const double* from) {
    from += Tile::at(threadIdx.x % 32 / 4, threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      a[i][0] = from[Tile::at(i * kM, 0)];
      a[i][1] = from[Tile::at(i * kM + 8, 0)];
    }
  }

  template <class Tile, int kCount>
  static __device__ void load_b(FragmentB (&b)[kCount], const double* from) {
    from += Tile::at(threadIdx.x % 32 / 4, threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < kCount; ++j) b[j] = from[Tile::at(j * kN, 0)];
  }

  static __device__ void multiply_add(Accumulator& c, const FragmentA& a, FragmentB b) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(b));
#else
    // Before 9.0 there is only m8n8k4.
#pragma unroll
    for (int half = 0; half < 2; ++half)
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+d"(c[2 * half]), "+d"(c[2 * half + 1])
          : "d"(a[half]), "d"(b));
#endif
  }
};

}  // namespace fusedops::cuda
