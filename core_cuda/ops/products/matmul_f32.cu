// float32 products by CUTLASS's SIMT kernels: tensor cores would round the inputs to TF32. Reads rows of op(a) and
// columns of op(b) once per block tile and writes c once. Limit: multiply-adds; a thread with 16 x 8 sums reuses each
// element from shared memory 8 or 16 times.
//
// Copies have one element each, so that any alignment works.
#include <algorithm>
#include <type_traits>

#include "core/cuda/launch.cuh"
#include "cutlass/gemm/device/gemm_universal.h"
#include "ops/products/matmul_kernels.h"

namespace fusedops::cuda {
namespace {

using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;

template <class LayoutA, class LayoutB, int kM, int kN, int kWarp, int kStages>
using Gemm = cutlass::gemm::device::GemmUniversal<
    float, LayoutA, float, LayoutB, float, RowMajor, float, cutlass::arch::OpClassSimt, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<kM, kN, 8>, cutlass::gemm::GemmShape<kWarp, kWarp, 8>, cutlass::gemm::GemmShape<1, 1, 1>,
    cutlass::epilogue::thread::LinearCombination<float, 1, float, float>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, kStages, 1, 1>;

// c = a @ b, or c += a @ b.
template <class Gemm>
Status run(const Matmul& part, int64_t c_stride, int64_t c_batch_stride, bool add, const Context& context) {
  float* const c = static_cast<float*>(part.c);
  const typename Gemm::Arguments arguments(
      cutlass::gemm::GemmUniversalMode::kBatched, {int(part.m), int(part.n), int(part.k)}, int(part.batch),
      {1.0f, add ? 1.0f : 0.0f}, part.a.data, part.b.data, c, c, part.a.batch_stride, part.b.batch_stride,
      c_batch_stride, c_batch_stride, part.a.stride, part.b.stride, c_stride, c_stride);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  Gemm gemm;
  cutlass::Status status = gemm.initialize(arguments, nullptr, stream);
  if (status == cutlass::Status::kSuccess) status = gemm.run(stream);
  if (status == cutlass::Status::kSuccess) return {};
  return Status::error("fusedops: a matrix product failed: ", cutlass::cutlassGetStatusString(status));
}

// CUTLASS's sizes have 32 bits, and a grid has at most 65535 blocks along the batch. Larger products are divided;
// chunks of k are added in sequence.
template <class Gemm>
Status run_in_parts(const Matmul& product, const Context& context) {
  constexpr int64_t kMaxRows = int64_t(1) << 30, kMaxColumns = int64_t(1) << 22, kMaxBatches = 65535;
  const int64_t stride = product.c_stride;
  const auto matrix = [](const Matmul::Matrix& whole, int64_t batch, int64_t row, int64_t column) {
    Matmul::Matrix part = whole.from(row, column, DType::f32);
    part.data = static_cast<const float*>(part.data) + batch * whole.batch_stride;
    return part;
  };
  Matmul part = product;
  for (int64_t batch = 0; batch < product.batch; batch += kMaxBatches)
    for (int64_t m = 0; m < product.m; m += kMaxRows)
      for (int64_t n = 0; n < product.n; n += kMaxColumns)
        for (int64_t k = 0; k < product.k; k += kMaxRows) {
          part.batch = std::min(product.batch - batch, kMaxBatches);
          part.m = std::min(product.m - m, kMaxRows);
          part.n = std::min(product.n - n, kMaxColumns);
          part.k = std::min(product.k - k, kMaxRows);
          part.a = matrix(product.a, batch, m, k);
          part.b = matrix(product.b, batch, k, n);
          part.c = static_cast<float*>(product.c) + (batch * product.m + m) * stride + n;
          FUSEDOPS_TRY(run<Gemm>(part, stride, product.m * stride, product.adds || k > 0, context));
        }
  return {};
}

// All kernels give the same bits; their tiles differ in shared memory traffic. A matrix whose lines run along k is
// transposed on its way to shared memory. Through registers (two stages) its alignment does not matter, where
// asynchronous copies of misaligned lines take 1.5 times as long. But only one tile is then in flight, which is too
// little for a skinny product.
template <class LayoutA, class LayoutB>
Status run_sized(const Matmul& product, ProductKernel kernel, const Context& context) {
  constexpr int kTransposed = std::is_same_v<LayoutA, RowMajor> + std::is_same_v<LayoutB, ColumnMajor>;
  constexpr int kLargeStages = kTransposed > 0 ? 2 : 4, kMaxGemvRows = 128;
  if (kernel == ProductKernel::f32_64x64) {
    using Async = Gemm<LayoutA, LayoutB, 64, 64, 32, 5>;
    using Staged = Gemm<LayoutA, LayoutB, 64, 64, 32, 2>;
    if constexpr (kTransposed == 1)
      if (std::min(product.m, product.n) <= kMaxGemvRows) return run_in_parts<Async>(product, context);
    return run_in_parts<std::conditional_t<kTransposed == 0, Async, Staged>>(product, context);
  }
  return kernel == ProductKernel::f32_128x256
             ? run_in_parts<Gemm<LayoutA, LayoutB, 128, 256, 64, kLargeStages>>(product, context)
             : run_in_parts<Gemm<LayoutA, LayoutB, 256, 128, 64, kLargeStages>>(product, context);
}

}  // namespace

Status matmul_f32(const Matmul& product, ProductKernel kernel, const Context& context) {
  if (product.a.transposed)
    return product.b.transposed ? run_sized<ColumnMajor, ColumnMajor>(product, kernel, context)
                                : run_sized<ColumnMajor, RowMajor>(product, kernel, context);
  return product.b.transposed ? run_sized<RowMajor, ColumnMajor>(product, kernel, context)
                              : run_sized<RowMajor, RowMajor>(product, kernel, context);
}

}  // namespace fusedops::cuda
