// The kernels of a matrix product. matmul_dispatch.h chooses among them; each takes the products that its comment
// describes.
#pragma once

#include "core/declaration/context.h"
#include "core/declaration/status.h"
#include "ops/products/matmul_dispatch.h"

namespace fusedops::cuda {

// Runs the chosen kernel, and logs it.
Status multiply(const Matmul& product, const GpuProperties& gpu, void* workspace, const Context& context);

// Any shape, stride and alignment; k >= 1, and no dimension is 0. `kernel`: one of the dtype's, which differ in tiles.
Status matmul_f64(const Matmul& product, ProductKernel kernel, const Context& context);
Status matmul_f32(const Matmul& product, ProductKernel kernel, const Context& context);
Status matmul_f16(const Matmul& product, ProductKernel kernel, const Context& context);
Status matmul_bf16(const Matmul& product, ProductKernel kernel, const Context& context);

// A product with splits of k.
Status matmul_split_k(const Matmul& product, const GpuProperties& gpu, void* workspace, const Context& context);

// c from the sums of the splits, [splits, m, n] in the compute type, which may be c itself.
Status finish_sums(const Matmul& product, const void* partials, int64_t splits, const Context& context);

// Compute capability 9.x and matrices that TMA takes.
Status matmul_f16_sm90(const Matmul& product, const Context& context);
Status matmul_bf16_sm90(const Matmul& product, const Context& context);

// The same for a product whose c is the sums.
Status sums_sm90(const Matmul& product, const Context& context);

// Compute capability 9.x and a single product whose a and b TMA can read.
Status few_tiles_f16_sm90(const Matmul& product, const FewTilesChoice& tile, const Context& context);
Status few_tiles_bf16_sm90(const Matmul& product, const FewTilesChoice& tile, const Context& context);

// Small tiles: the sums of the splits.
Status split_sums_sm90(const Matmul& part, const Context& context);

// The same with an epilogue; a is not transposed.
Status linear_sm90(const Matmul& product, const Context& context);

// The same for gated_linear.
Status gated_linear_sm90(const GatedLinear& call, const Context& context);

}  // namespace fusedops::cuda
