// Chooses the kernel for a matrix product: by its shape, then by what the GPU and the alignment allow.
#include <cuda_runtime.h>

#include "core/cuda/launch.cuh"
#include "ops/products/matmul_paths.h"

namespace fusedops {
namespace cuda {
namespace {

#ifdef FUSEDOPS_SM90

// A product of few rows is limited by the reading of b.
bool takes_few_rows(const Matmul& product) {
  constexpr int64_t kMostRows = 64, kMost = int64_t(1) << 30;
  return product.batch == 1 && product.m <= kMostRows && !product.a.transposed && !product.is_wide &&
         rows_aligned(product) && product.n < kMost && product.k < kMost;
}

// A product with few tiles of 128 x 256 is faster in smaller ones.
bool takes_sm90(const Matmul& product) {
  return tma_takes(product) && reinterpret_cast<uintptr_t>(product.epilogue.z) % 16 == 0 && !is_small(product);
}

#endif

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
#ifdef FUSEDOPS_SM90
  bool has_sm90 = false;
  if (size_of(product.dtype) == 2) FUSEDOPS_TRY(cuda::has_sm90(&has_sm90));
  if (has_sm90 && cuda::takes_few_rows(product)) return cuda::few_rows_sm90(product, context);
#endif
  if (product.splits > 0) return cuda::matmul_split_k(product, workspace, context);
#ifdef FUSEDOPS_SM90
  if (has_sm90 && cuda::takes_sm90(product)) {
    if (!product.epilogue.is_empty()) return cuda::linear_sm90(product, context);
    if (product.is_wide) return cuda::sums_sm90(product, context);
    return product.dtype == DType::f16 ? cuda::matmul_f16_sm90(product, context)
                                       : cuda::matmul_bf16_sm90(product, context);
  }
#endif
  switch (product.dtype) {
    case DType::f64:
      return cuda::matmul_f64(product, context);
    case DType::f32:
      FUSEDOPS_TRY(cuda::matmul_f32(product, context));
      return product.epilogue.is_empty() ? Status() : cuda::finish_sums(product, product.c, 1, context);
    case DType::f16:
      return product.is_wide ? cuda::matmul_f16_sums(product, context) : cuda::matmul_f16(product, context);
    case DType::bf16:
      return product.is_wide ? cuda::matmul_bf16_sums(product, context) : cuda::matmul_bf16(product, context);
    default:
      return Status::error("fusedops: no matrix product computes in ", name_of(product.dtype));
  }
}

}  // namespace fusedops
