// The kernels that a matrix product can take. matmul.cu chooses; each takes the products that its comment describes.
// The choice follows from shapes, strides and alignment (and the GPU's architecture), so that equal calls give equal
// bits.
#pragma once

#include <cstdint>

#include "core/declaration/context.h"
#include "core/declaration/status.h"
#include "ops/products/gated_linear.h"
#include "ops/products/matmul.h"
#include "ops/products/matmul_tiles.h"

namespace fusedops::cuda {

// Any shape, stride and alignment; k >= 1, and no dimension is 0.
Status matmul_f64(const Matmul& product, const Context& context);
Status matmul_f32(const Matmul& product, const Context& context);
Status matmul_f16(const Matmul& product, const Context& context);
Status matmul_bf16(const Matmul& product, const Context& context);

// The same for a product whose c is the sums.
Status matmul_f16_sums(const Matmul& product, const Context& context);
Status matmul_bf16_sums(const Matmul& product, const Context& context);

// A product with splits of k.
Status matmul_split_k(const Matmul& product, void* workspace, const Context& context);

// c from the sums of the splits, [splits, m, n] in the compute type, which may be c itself.
Status finish_sums(const Matmul& product, const void* partials, int64_t splits, const Context& context);

// Compute capability 9.x and matrices that TMA takes: see has_large_tiles in matmul.cu.
Status matmul_f16_sm90(const Matmul& product, const Context& context);
Status matmul_bf16_sm90(const Matmul& product, const Context& context);

// The same for a product whose c is the sums.
Status sums_sm90(const Matmul& product, const Context& context);

// Compute capability 9.x and a single product whose a and b TMA can read: see matmul_tiles.h.
Status few_tiles_f16_sm90(const Matmul& product, const FewTilesChoice& tile, const Context& context);
Status few_tiles_bf16_sm90(const Matmul& product, const FewTilesChoice& tile, const Context& context);

// Small tiles: the sums of the splits.
Status split_sums_sm90(const Matmul& part, const Context& context);

// The same with an epilogue; a is not transposed.
Status linear_sm90(const Matmul& product, const Context& context);

// The same for gated_linear: see takes_sm90 in gated_linear.cu. kGatedColumns divides the columns of y.
inline constexpr int kGatedColumns = 64;
Status gated_linear_sm90(const GatedLinear& call, const Context& context);

// Whether 16-byte accesses can read the lines of a and of b.
inline bool rows_aligned(const Matmul& product) {
  const auto aligned = [&](const Matmul::Matrix& matrix) {
    const int64_t size = size_of(product.dtype);
    return reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && matrix.stride * size % 16 == 0 &&
           matrix.batch_stride * size % 16 == 0;
  };
  return aligned(product.a) && aligned(product.b);
}

// Whether TMA can read a and b: it wants lines of 16 bytes and sizes of 32 bits. Rows of a, or columns of b, that lie
// side by side must be a multiple of 8: the last tile ends where they do, and would begin between two words of 16
// bytes.
inline bool tma_reads(const Matmul& product) {
  constexpr int64_t kMost = int64_t(1) << 30;
  if ((product.a.transposed && product.m % 8) || (!product.b.transposed && product.n % 8)) return false;
  return rows_aligned(product) && product.m < kMost && product.n < kMost && product.k < kMost && product.batch < kMost;
}

// Whether it can write c, too.
inline bool tma_takes(const Matmul& product) {
  return tma_reads(product) && product.n % 8 == 0 && product.c_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(product.c) % 16 == 0;
}

// Whether tiles of 128 x 128 would be mostly empty, or too few to occupy a large GPU.
inline bool is_small(const Matmul& product) {
  const int64_t tiles_m = (product.m + 127) / 128, tiles_n = (product.n + 127) / 128;
  return product.m <= 64 || product.n <= 64 || tiles_m * tiles_n * product.batch < 128;
}

}  // namespace fusedops::cuda
