// Runs the kernel that matmul_dispatch.h chooses for a matrix product.
#include <cuda_runtime.h>

#include <algorithm>

#include "core/cuda/gpu.h"
#include "core/cuda/launch.cuh"
#include "ops/products/matmul_kernels.h"

namespace fusedops {
namespace cuda {
namespace {

// The product of a block of c, without copies.
Matmul part_of(const Matmul& product, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  const auto from = [&](const void* data, int64_t element, DType dtype) {
    return data ? static_cast<char*>(const_cast<void*>(data)) + element * size_of(dtype) : nullptr;
  };
  const int64_t at = row * product.c_stride + column;
  Matmul part = product;
  part.a = product.a.from(row, 0, product.dtype);
  part.b = product.b.from(0, column, product.dtype);
  part.c = from(product.c, at, product.c_dtype());
  part.epilogue.bias = from(product.epilogue.bias, column, product.dtype);
  part.epilogue.z = from(product.epilogue.z, at, product.dtype);
  part.m = rows, part.n = columns;
  part.can_copy = false;
  return part;
}

// Computes c for k = 0.
Status fill(const Matmul& product, const Context& context) {
  if (!product.epilogue.is_empty()) return finish_sums(product, nullptr, 0, context);
  if (product.adds) return {};
  const size_t size = size_of(product.c_dtype()), rows = product.batch * product.m;  // zeros in every dtype
  return check(cudaMemset2DAsync(product.c, product.c_stride * size, 0, product.n * size, rows,
                                 static_cast<cudaStream_t>(context.stream)),
               "cudaMemset2DAsync");
}

// Computes the rows and columns that TMA can read, then the remaining rows, then the remaining columns.
Status multiply_tma_parts(const Matmul& product, int64_t m, int64_t n, const GpuProperties& gpu, void* workspace,
                          const Context& context) {
  const int64_t rows = product.m - m, columns = product.n - n;
  FUSEDOPS_TRY(multiply(part_of(product, 0, m, 0, n), gpu, workspace, context));
  FUSEDOPS_TRY(multiply(part_of(product, m, rows, 0, product.n), gpu, workspace, context));
  return multiply(part_of(product, 0, m, n, columns), gpu, workspace, context);
}

// The product of `count` matrices of the batch.
Matmul matrices_of(const Matmul& product, int64_t first, int64_t count) {
  const auto from = [&](const Matmul::Matrix& matrix) {
    Matmul::Matrix part = matrix;
    part.data = static_cast<const char*>(matrix.data) + first * matrix.batch_stride * size_of(product.dtype);
    return part;
  };
  Matmul part = product;
  part.a = from(product.a);
  part.b = from(product.b);
  part.c = static_cast<char*>(product.c) + first * product.m * product.c_stride * size_of(product.c_dtype());
  part.batch = count;
  return part;
}

// The product of aligned copies, which are at the start of the workspace.
Status multiply_copies(const Matmul& product, const AlignedCopies& copies, const GpuProperties& gpu, void* workspace,
                       const Context& context) {
  char* const memory_of_a = static_cast<char*>(workspace);
  char* const memory_of_b = memory_of_a + copies.bytes_of_a();
  char* const rest = memory_of_b + copies.bytes_of_b();
  // Replaces a matrix by its copy.
  const auto take_copy = [&](Matmul::Matrix& matrix, bool is_shared, int64_t batch, int64_t lines, void* to) {
    const LineCopy copy = {matrix, is_shared ? 1 : batch, lines, product.k, to, copies.stride};
    matrix = {to, false, copies.stride, is_shared || batch == 1 ? 0 : lines * copies.stride};
    return copy;
  };
  for (int64_t first = 0; first < product.batch; first += copies.matrices) {
    const Matmul some = matrices_of(product, first, std::min(copies.matrices, product.batch - first));
    for (int64_t column = 0; column < product.n; column += copies.columns) {
      const int64_t columns = std::min(copies.columns, product.n - column);
      for (int64_t row = 0; row < product.m; row += copies.rows) {
        const int64_t rows = std::min(copies.rows, product.m - row);
        Matmul part = part_of(some, row, rows, column, columns);
        LineCopy copy_a, copy_b;
        if (copies.of_a) copy_a = take_copy(part.a, copies.a_is_shared, some.batch, rows, memory_of_a);
        if (copies.of_b) {
          Matmul::Matrix b = part.b.turned();
          copy_b = take_copy(b, copies.b_is_shared, some.batch, columns, memory_of_b);
          part.b = b.turned();
        }
        // The previous chunk has copied it.
        if ((column > 0 && rows == product.m) || (first > 0 && copies.a_is_shared)) copy_a = {};
        if (row > 0 || (first > 0 && copies.b_is_shared)) copy_b = {};
        FUSEDOPS_TRY(copy_lines(copy_a, copy_b, context));
        FUSEDOPS_TRY(multiply(part, gpu, rest, context));
      }
    }
  }
  return {};
}

}  // namespace

Status multiply(const Matmul& product, const GpuProperties& gpu, void* workspace, const Context& context) {
  const ProductProblem problem(product, gpu);
  const ProductEntry& entry = choose_product(problem, gpu);
  if (kLogsDispatch) log_kernel(kernel_name(entry, problem), entry.reason, gpu);
  const bool is_f16 = product.dtype == DType::f16;
  switch (entry.kernel) {
    case ProductKernel::none:
      return {};
    case ProductKernel::fill:
      return fill(product, context);
    case ProductKernel::blocks_of_halves:
      return blocks_of_halves(product, gpu, workspace, context);
    case ProductKernel::gemv:
      return matmul_gemv(product, workspace, context);
    case ProductKernel::aligned_copies:
      return multiply_copies(product, problem.copies, gpu, workspace, context);
    case ProductKernel::tma_parts:
      return multiply_tma_parts(product, problem.tma_rows, problem.tma_columns, gpu, workspace, context);
    case ProductKernel::split_k:
      return matmul_split_k(product, gpu, workspace, context);
#ifdef FUSEDOPS_SM90
    case ProductKernel::sm90_halves:
      return halves_sm90(product, context);
    case ProductKernel::sm90_split:
      return split_sums_sm90(product, context);
    case ProductKernel::sm90_swap_ab:
      return (is_f16 ? swap_ab_f16_sm90 : swap_ab_bf16_sm90)(product, problem.few, context);
    case ProductKernel::sm90_ping_pong:
      return linear_sm90(product, context);
    case ProductKernel::sm90_large:
      return (product.has_compute_dtype_c ? sums_sm90 : is_f16 ? matmul_f16_sm90 : matmul_bf16_sm90)(product, context);
#endif
    case ProductKernel::f64_32x32:
    case ProductKernel::f64_small:
    case ProductKernel::f64_large:
      return matmul_f64(product, entry.kernel, context);
    case ProductKernel::f32_32x32:
    case ProductKernel::f32_32x64:
      return sliced_f32(product, entry.kernel, context);
    case ProductKernel::f32_64x64:
    case ProductKernel::f32_128x256:
    case ProductKernel::f32_256x128:
      FUSEDOPS_TRY(matmul_f32(product, entry.kernel, context));
      return product.epilogue.is_empty() ? Status() : finish_sums(product, product.c, 1, context);
    default:
      return (is_f16 ? matmul_f16 : matmul_bf16)(product, entry.kernel, context);
  }
}

}  // namespace cuda

Status matmul_cuda(const Call& call) { return multiply_cuda(Matmul::of(call), call.workspace, call.context); }

Status multiply_cuda(const Matmul& product, void* workspace, const Context& context) {
  GpuProperties gpu;
  FUSEDOPS_TRY(cuda::current_gpu(&gpu));
  return cuda::multiply(product, gpu, workspace, context);
}

}  // namespace fusedops
