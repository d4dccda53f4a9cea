// Chooses the kernel for a matrix product: by its shape, then by what the GPU and the alignment allow.
#include <cuda_runtime.h>

#include <algorithm>

#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "ops/products/aligned_copies.h"
#include "ops/products/matmul_paths.h"

namespace fusedops {
namespace cuda {
namespace {

// The rows and columns of c from there on, as many as said.
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
  return part;
}

#ifdef FUSEDOPS_SM90

// Whether TMA can write c and z as well as read a and b.
bool has_large_tiles(const Matmul& product) {
  return tma_takes(product) && reinterpret_cast<uintptr_t>(product.epilogue.z) % 16 == 0;
}

// Products of several matrices, and those whose c is the sums, have large tiles or none.
bool takes_large_tiles(const Matmul& product) { return has_large_tiles(product) && !is_small(product); }

Status run_sm90(const Matmul& product, ProductKernel kernel, const FewTilesChoice& few, void* workspace,
                const Context& context) {
  const bool f16 = product.dtype == DType::f16;
  switch (kernel) {
    case ProductKernel::few_tiles:
      return (f16 ? few_tiles_f16_sm90 : few_tiles_bf16_sm90)(product, few, context);
    case ProductKernel::splits:
      return matmul_split_k(product, workspace, context);
    case ProductKernel::turns:
      return linear_sm90(product, context);
    default:
      return (f16 ? matmul_f16_sm90 : matmul_bf16_sm90)(product, context);
  }
}

// TMA reads a multiple of 8 rows of a, or columns of b, that lie side by side. This many of a product's; all of those
// that do not.
struct ReadByTma {
  int64_t m, n;

  explicit ReadByTma(const Matmul& product)
      : m(product.a.transposed ? product.m / 8 * 8 : product.m),
        n(product.b.transposed ? product.n : product.n / 8 * 8) {}

  bool is_most_of(const Matmul& product) const {
    constexpr int64_t kLeast = 64;  // of fewer, the other kernels take less time than two more launches
    Matmul part = product;
    part.m = m, part.n = n;
    const bool is_taken = product.is_wide ? tma_takes(part) : tma_reads(part);
    return (m < product.m || n < product.n) && m >= kLeast && n >= kLeast && is_taken;
  }
};

#endif

// The matrices are read as they lie in memory.
Status multiply_in_place(const Matmul& product, void* workspace, const Context& context) {
  if (product.m == 0 || product.n == 0) return {};
#ifdef FUSEDOPS_SM90
  bool is_sm90 = false;
  if (size_of(product.dtype) == 2) FUSEDOPS_TRY(has_sm90(&is_sm90));
  if (is_sm90 && product.batch == 1 && !product.is_wide && tma_reads(product)) {
    const auto few = FewTilesChoice::of(product);
    return run_sm90(product, product_kernel(product, few, has_large_tiles(product)), few, workspace, context);
  }
  if (is_sm90 && product.batch == 1 && product.epilogue.is_empty()) {
    const ReadByTma most(product);
    if (most.is_most_of(product)) {
      const int64_t m = most.m, n = most.n, rows = product.m - m, columns = product.n - n;
      FUSEDOPS_TRY(multiply_in_place(part_of(product, 0, m, 0, n), workspace, context));
      FUSEDOPS_TRY(multiply_in_place(part_of(product, m, rows, 0, product.n), workspace, context));
      return multiply_in_place(part_of(product, 0, m, n, columns), workspace, context);
    }
  }
#endif
  if (product.splits > 0) return matmul_split_k(product, workspace, context);
#ifdef FUSEDOPS_SM90
  if (is_sm90 && takes_large_tiles(product))
    return product.is_wide ? sums_sm90(product, context)
                           : run_sm90(product, ProductKernel::large, {}, workspace, context);
#endif
  switch (product.dtype) {
    case DType::f64:
      return matmul_f64(product, context);
    case DType::f32:
      FUSEDOPS_TRY(matmul_f32(product, context));
      return product.epilogue.is_empty() ? Status() : finish_sums(product, product.c, 1, context);
    case DType::f16:
      return product.is_wide ? matmul_f16_sums(product, context) : matmul_f16(product, context);
    case DType::bf16:
      return product.is_wide ? matmul_bf16_sums(product, context) : matmul_bf16(product, context);
    default:
      return Status::error("fusedops: no matrix product computes in ", name_of(product.dtype));
  }
}

// These matrices of the batch.
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

// The product of copies: see aligned_copies.h. The workspace begins with them.
Status multiply_copies(const Matmul& product, const AlignedCopies& copies, void* workspace, const Context& context) {
  char* const memory_of_a = static_cast<char*>(workspace);
  char* const memory_of_b = memory_of_a + copies.bytes_of_a();
  char* const rest = memory_of_b + copies.bytes_of_b();
  // Exchanges a matrix for its copy.
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
        // What is there from the part before.
        if ((column > 0 && rows == product.m) || (first > 0 && copies.a_is_shared)) copy_a = {};
        if (row > 0 || (first > 0 && copies.b_is_shared)) copy_b = {};
        FUSEDOPS_TRY(copy_lines(copy_a, copy_b, context));
        FUSEDOPS_TRY(multiply_in_place(part, rest, context));
      }
    }
  }
  return {};
}

// Whether the product works on these copies: a matrix that is read as it lies must be aligned, and TMA leaves nothing
// of a matrix where there is none.
Status takes(const AlignedCopies& copies, const Matmul& product, bool* result) {
  const auto is_ready = [](bool is_copied, const Matmul::Matrix& matrix) {
    return is_copied || is_aligned(matrix.data);
  };
  *result = copies.any() && is_ready(copies.of_a, product.a) && is_ready(copies.of_b, product.b);
  return *result && !copies.is_misaligned ? has_sm90(result) : Status();
}

}  // namespace
}  // namespace cuda

Status matmul_cuda(const Call& call) { return multiply_cuda(Matmul::of(call), call.workspace, call.context); }

Status multiply_cuda(const Matmul& product, void* workspace, const Context& context) {
  if (product.batch == 0 || product.m == 0 || product.n == 0) return {};
  if (product.k == 0) {
    if (!product.epilogue.is_empty()) return cuda::finish_sums(product, nullptr, 0, context);
    if (product.adds) return {};
    const size_t size = size_of(product.c_dtype()), rows = product.batch * product.m;  // zeros in every dtype
    return cuda::check(cudaMemset2DAsync(product.c, product.c_stride * size, 0, product.n * size, rows,
                                         static_cast<cudaStream_t>(context.stream)),
                       "cudaMemset2DAsync");
  }
  const AlignedCopies copies(product);
  bool is_copied = false;
  FUSEDOPS_TRY(cuda::takes(copies, product, &is_copied));
  if (is_copied) return cuda::multiply_copies(product, copies, workspace, context);
  return cuda::multiply_in_place(product, workspace, context);
}

}  // namespace fusedops
