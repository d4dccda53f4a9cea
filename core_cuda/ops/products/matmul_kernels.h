// Entry points of the kernels for matrix products, with their preconditions. matmul_dispatch.h chooses among them.
#pragma once

#include "core/declaration/context.h"
#include "core/declaration/status.h"
#include "ops/products/matmul_dispatch.h"

namespace fusedops::cuda {

// Runs the chosen kernel, and logs it.
Status multiply(const Matmul& product, const GpuProperties& gpu, void* workspace, const Context& context);

// Any shape, stride and alignment; no dimension is 0. `kernel`: one of the tile shapes of the dtype.
Status matmul_f64(const Matmul& product, ProductKernel kernel, const Context& context);
Status matmul_f32(const Matmul& product, ProductKernel kernel, const Context& context);
Status sliced_f32(const Matmul& product, ProductKernel kernel, const Context& context);  // few tiles
Status matmul_f16(const Matmul& product, ProductKernel kernel, const Context& context);
Status matmul_bf16(const Matmul& product, ProductKernel kernel, const Context& context);

// Any stride and alignment; Gemv(product) has rows.
Status matmul_gemv(const Matmul& product, void* workspace, const Context& context);

// Split-K: product.splits > 0.
Status matmul_split_k(const Matmul& product, const GpuProperties& gpu, void* workspace, const Context& context);

// c from the sums of the splits, [splits, m, n] in the compute type, which may be c itself.
Status finish_sums(const Matmul& product, const void* partials, int64_t splits, const Context& context);

// Compute capability 9.x; TMA can load a and b and store c.
Status matmul_f16_sm90(const Matmul& product, const Context& context);
Status matmul_bf16_sm90(const Matmul& product, const Context& context);

// The same, for a c of sums.
Status sums_sm90(const Matmul& product, const Context& context);

// Compute capability 9.x; a single product whose a and b TMA can load.
Status swap_ab_f16_sm90(const Matmul& product, const SwapAbChoice& tile, const Context& context);
Status swap_ab_bf16_sm90(const Matmul& product, const SwapAbChoice& tile, const Context& context);

// c in halves (Matmul::to_halves): any product; or, on compute capability 9.x, one whose a is transposed and whose b is
// not, all of which TMA can load and store.
Status blocks_of_halves(const Matmul& product, const GpuProperties& gpu, void* workspace, const Context& context);
Status halves_sm90(const Matmul& product, const Context& context);

// Small tiles, for the splits of a split-K product.
Status split_sums_sm90(const Matmul& part, const Context& context);

// With an epilogue; a is not transposed.
Status linear_sm90(const Matmul& product, const Context& context);

Status gated_linear_sm90(const GatedLinear& call, const Context& context);

}  // namespace fusedops::cuda
