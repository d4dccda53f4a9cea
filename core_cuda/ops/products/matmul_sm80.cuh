// Tile shapes of 16-bit products with mma (Mma16).
#pragma once

#include "core/cuda/mma16.cuh"
#include "ops/products/matmul_multistage.cuh"

namespace fusedops::cuda {

// 128 x 128 reuses each fragment 4 or 8 times; 64 x 64 gives a small product four times as many blocks.
using LargeTile16 = BlockTile<128, 128, 32, 64, 64, 4, 2>;
using SmallTile16 = BlockTile<64, 64, 32, 32, 32, 4, 4>;

// For copies through registers, with only one tile in flight. Twice the warps halve the registers of a thread, so that
// two blocks fit: one multiplies while the other waits for its loads.
using LargeMisalignedTile16 = BlockTile<128, 128, 32, 64, 32, 2, 2>;
using SmallMisalignedTile16 = BlockTile<64, 64, 32, 32, 32, 2, 4>;

// c is T, or float for sums, which have small tiles only.
template <class Out, class T>
Status small_matmul16(const Matmul& product, ProductKernel kernel, const Context& context) {
  return kernel == ProductKernel::sm80_small
             ? launch_multistage<Out, Mma16<T>, SmallTile16, 16>(product, context)
             : launch_multistage<Out, Mma16<T>, SmallMisalignedTile16, 2>(product, context);
}

template <class T>
Status matmul16(const Matmul& product, ProductKernel kernel, const Context& context) {
  if (product.has_compute_dtype_c) return small_matmul16<float, T>(product, kernel, context);
  if (kernel == ProductKernel::sm80_large) return launch_multistage<T, Mma16<T>, LargeTile16, 16>(product, context);
  if (kernel == ProductKernel::sm80_large_unaligned)
    return launch_multistage<T, Mma16<T>, LargeMisalignedTile16, 2>(product, context);
  return small_matmul16<T, T>(product, kernel, context);
}

}  // namespace fusedops::cuda
