// float64 products on tensor cores. Limit: a multiprocessor of compute capability 9.0 does 128 multiply-adds a cycle,
// for which a tile of 64 x 128 reads 24 bytes from L2; from 4096^3 on, the GPU's power.
#include "ops/products/matmul_multistage.cuh"

namespace fusedops::cuda {
namespace {

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

// Two blocks per multiprocessor: one multiplies while the other waits at a barrier. Three stages of a large tile take
// up to 90 KiB, four of a small one 80 KiB.
using LargeTile64 = BlockTile<64, 128, 16, 64, 32, 3, 2, true>;
using SmallTile64 = BlockTile<64, 64, 16, 32, 32, 4, 2, true>;

template <class Tile>
Status run(const Matmul& product, const Context& context) {
  return has_aligned_rows(product) ? launch_multistage<double, Mma64, Tile, 16>(product, context)
                                   : launch_multistage<double, Mma64, Tile, 8>(product, context);
}

}  // namespace

Status matmul_f64(const Matmul& product, ProductKernel kernel, const Context& context) {
  return kernel == ProductKernel::f64_small ? run<SmallTile64>(product, context) : run<LargeTile64>(product, context);
}

}  // namespace fusedops::cuda
