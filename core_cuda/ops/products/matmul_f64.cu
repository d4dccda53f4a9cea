// float64 products on tensor cores. Limit: a multiprocessor of compute capability 9.0 does 128 multiply-adds a cycle,
// for which a tile of 64 x 128 reads 24 bytes from L2; from 4096^3 on, the GPU's power.
#include "core/cuda/mma64.cuh"
#include "ops/products/matmul_multistage.cuh"

namespace fusedops::cuda {
namespace {

// Two blocks per multiprocessor: one multiplies while the other waits at a barrier. Three stages of a large tile take
// up to 90 KiB, four of a small one 80 KiB.
using LargeTile64 = BlockTile<64, 128, 16, 64, 32, 3, 2, true>;
// For few tiles, more blocks: 32 of k per stage, since a stage of 16 would take less time than a barrier and a copy.
using TinyTile64 = BlockTile<32, 32, 32, 16, 16, 4, 2, true>;
using SmallTile64 = BlockTile<64, 64, 16, 32, 32, 4, 2, true>;

template <class Tile>
Status run(const Matmul& product, const Context& context) {
  return has_aligned_rows(product) ? launch_multistage<double, Mma64, Tile, 16>(product, context)
                                   : launch_multistage<double, Mma64, Tile, 8>(product, context);
}

}  // namespace

Status matmul_f64(const Matmul& product, ProductKernel kernel, const Context& context) {
  if (kernel == ProductKernel::f64_32x32) return run<TinyTile64>(product, context);
  return kernel == ProductKernel::f64_small ? run<SmallTile64>(product, context) : run<LargeTile64>(product, context);
}

}  // namespace fusedops::cuda
