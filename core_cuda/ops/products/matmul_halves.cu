// Products whose float32 sums are in halves (Matmul::to_halves), with the kernels of other products: the sums of a
// block of rows go to the workspace, and a second kernel adds them. Limit: memory bandwidth of the second kernel.
#include "core/cuda/divisor.cuh"
#include "core/cuda/launch.cuh"
#include "ops/products/matmul_kernels.h"

namespace fusedops::cuda {
namespace {

// Adds `count` adjacent sums, which begin at a row of c, to the halves there.
__global__ void __launch_bounds__(kThreads)
    add_halves_kernel(const float* sums, int64_t count, uint16_t* upper, uint16_t* lower, int64_t stride, bool adds,
                      bool rounds, const Divisor columns) {
  begin_kernel();
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const auto [row, column] = columns.divide(i);
  const int64_t at = row * stride + column;
  float sum = sums[i];
  if (adds) sum += Halves{upper[at], lower[at]}.sum();
  if (rounds) {
    upper[at] = from_compute<bf16>(sum).bits;
    return;
  }
  const auto halves = Halves::of(sum);
  upper[at] = halves.upper;
  lower[at] = halves.lower;
}

}  // namespace

Status blocks_of_halves(const Matmul& product, const GpuProperties& gpu, void* workspace, const Context& context) {
  auto* const sums = static_cast<float*>(workspace);
  for (int64_t row = 0; row < product.m; row += product.rows_of_halves()) {
    const int64_t rows = std::min(product.rows_of_halves(), product.m - row), count = rows * product.n;
    Matmul part(product.dtype, 1, rows, product.n, product.k, product.a.from(row, 0, product.dtype), product.b, sums);
    FUSEDOPS_TRY(multiply(part.to_sums(/*add=*/false).without_workspace(), gpu, nullptr, context));
    FUSEDOPS_TRY(launch(context, add_halves_kernel, (count + kThreads - 1) / kThreads, kThreads, sums, count,
                        static_cast<uint16_t*>(product.c) + row * product.c_stride,
                        static_cast<uint16_t*>(product.low) + row * product.c_stride, product.c_stride, product.adds,
                        product.rounds, Divisor(product.n)));
  }
  return {};
}

}  // namespace fusedops::cuda
