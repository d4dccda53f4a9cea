// Chooses the kernel for a matrix product: by its shape, then by what the GPU and the alignment allow.
#include <cuda_runtime.h>

#include "core/cuda/launch.cuh"
#include "ops/products/matmul_paths.h"

namespace fusedops {
namespace cuda {
namespace {

#ifdef FUSEDOPS_SM90

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
  if (product.splits > 0) return cuda::matmul_split_k(product, workspace, context);
#ifdef FUSEDOPS_SM90
  if (size_of(product.dtype) == 2 && cuda::takes_sm90(product)) {
    bool has_sm90 = false;
    FUSEDOPS_TRY(cuda::has_sm90(&has_sm90));
    if (has_sm90 && !product.epilogue.is_empty()) return cuda::linear_sm90(product, context);
    if (has_sm90 && product.is_wide) return cuda::sums_sm90(product, context);
    if (has_sm90)
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
