// float64 on the tensor cores. Limit: a multiprocessor of compute capability 9.0 does 128 multiply-adds a cycle, for
// which a tile of 128 x 128 reads 16 bytes from the L2 cache.
#include "ops/products/matmul_multistage.cuh"

namespace fusedops::cuda {
namespace {

struct Mma64 {
  using Element = double;
  static constexpr int kM = 16, kN = 8, kK = 8;
  using FragmentA = double[kK / 2];
  using FragmentB = double[kK / 4];
  using Accumulator = double[4];
  static constexpr int kPad = 4;

  // Thread 4 * g + t holds rows g and g + 8, every fourth element of k from t on.
  template <class Tile, int kCount>
  static __device__ void load_a(FragmentA (&a)[kCount], const double* from) {
    const int group = threadIdx.x % 32 / 4, thread = threadIdx.x % 4;
    from += Tile::at(group, thread);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int k = 0; k < kK / 4; ++k) {
        a[i][2 * k] = from[Tile::at(i * kM, 4 * k)];
        a[i][2 * k + 1] = from[Tile::at(i * kM + 8, 4 * k)];
      }
  }

  template <class Tile, int kCount>
  static __device__ void load_b(FragmentB (&b)[kCount], const double* from) {
    const int group = threadIdx.x % 32 / 4, thread = threadIdx.x % 4;
    from += Tile::at(group, thread);
#pragma unroll
    for (int j = 0; j < kCount; ++j)
#pragma unroll
      for (int k = 0; k < kK / 4; ++k) b[j][k] = from[Tile::at(j * kN, 4 * k)];
  }

  static __device__ void multiply_add(Accumulator& c, const FragmentA& a, const FragmentB& b) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
    // Older tensor cores take 8 x 8 x 4; the fragments are the same.
#pragma unroll
    for (int k = 0; k < kK / 4; ++k)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+d"(c[2 * half]), "+d"(c[2 * half + 1])
            : "d"(a[2 * k + half]), "d"(b[k]));
#endif
  }
};

// Two stages of 16 take 80 KiB, which every GPU from compute capability 8.0 on has; a third gained nothing.
using LargeTile64 = BlockTile<128, 128, 16, 64, 32, 2, 1>;
using SmallTile64 = BlockTile<64, 64, 16, 32, 32, 4, 2>;

template <class Tile>
Status run(const Matmul& product, const Context& context) {
  return rows_aligned(product) ? launch_multistage<double, Mma64, Tile, 16>(product, context)
                               : launch_multistage<double, Mma64, Tile, 8>(product, context);
}

}  // namespace

Status matmul_f64(const Matmul& product, const Context& context) {
  return is_small(product) ? run<SmallTile64>(product, context) : run<LargeTile64>(product, context);
}

}  // namespace fusedops::cuda
