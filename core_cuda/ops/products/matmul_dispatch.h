// Kernel selection for matrix products. It depends on dtype, shape, strides, alignment and the GPU alone, so that equal
// calls give equal bits. Among kernels with different orders of sums it does not depend on the number of
// multiprocessors.
#pragma once

#include <cstdint>

#include "core/declaration/dispatch.h"
#include "ops/products/aligned_copies.h"
#include "ops/products/gated_linear.h"
#include "ops/products/matmul.h"
#include "ops/products/matmul_tiles.h"

namespace fusedops::cuda {

// matmul.cu runs each of them; matmul_kernels.h declares the kernels.
enum class ProductKernel {
  none,
  fill,
  sm90_halves,
  blocks_of_halves,
  gemv,
  aligned_copies,
  sm90_split,
  sm90_swap_ab,
  sm90_ping_pong,
  sm90_large,
  tma_parts,
  split_k,
  f64_32x32,
  f64_small,
  f64_large,
  f32_32x32,
  f32_32x64,
  f32_64x64,
  f32_128x256,
  f32_256x128,
  sm80_large,
  sm80_large_unaligned,
  sm80_small,
  sm80_small_unaligned,
};

// True if 16-byte accesses can read the lines of a and b.
bool has_aligned_rows(const Matmul& product);

// True if TMA can load a and b: lines begin at multiples of 16 bytes and sizes fit into 32 bits. Rows of a, or columns
// of b, that are adjacent in memory must be a multiple of 8, since the last tile ends where they do.
bool can_tma_load(const Matmul& product);

// True if TMA can store c, too.
bool can_tma_load_and_store(const Matmul& product);

// True if tiles of 128 x 128 would be mostly empty, or too few to occupy a large GPU.
bool is_small(const Matmul& product);

// A product, and derived properties that several entries of the table read.
struct ProductProblem {
  ProductProblem(const Matmul& product, const GpuProperties& gpu);

  const Matmul& product;
  AlignedCopies copies;
  bool is_copied;  // the product reads the copies

  // The kernel with the least modeled time (matmul_tiles.cpp), for a single product with a 16-bit c on compute
  // capability 9.x whose a and b TMA can load; otherwise `none`.
  ProductKernel fastest = ProductKernel::none;
  SwapAbChoice few;
  bool is_gemv;  // reads the larger matrix once

  // The rows of a and columns of b that TMA can load: a multiple of 8 where they are adjacent in memory.
  int64_t tma_rows, tma_columns;
  bool is_mostly_tma;
};

using ProductEntry = DispatchEntry<ProductKernel, ProductProblem>;
const ProductEntry& choose_product(const ProductProblem& problem, const GpuProperties& gpu);

// The name of the kernel, with its tile shape if it has several.
std::string kernel_name(const ProductEntry& entry, const ProductProblem& problem);

// The kernel with the least modeled time. `can_use_large_tiles`: TMA can store c, too.
ProductKernel fastest_sm90(const Matmul& product, const SwapAbChoice& few, bool can_use_large_tiles);

// gated_linear: one kernel for both products and the gate, or calls of linear and gated_act.
enum class GatedLinearKernel { sm90, calls };
inline constexpr int kGatedColumns = 64;  // columns of y in a tile of the kernel

using GatedLinearEntry = DispatchEntry<GatedLinearKernel, GatedLinear>;
const GatedLinearEntry& choose_gated_linear(const GatedLinear& call, const GpuProperties& gpu);

}  // namespace fusedops::cuda
