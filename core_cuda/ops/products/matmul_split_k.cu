// Split-K, for a product with a small c and a long k, such as the gradient of a small weight over many rows. The
// product of each split is one matrix of a batch, in the type of the sums. A second kernel adds the splits in a fixed
// order, rounds once and writes c, or adds them to c. Limit: reading a and b, or the tensor cores of a small grid.
#include "ops/products/epilogue.cuh"
#include "ops/products/matmul_kernels.h"

namespace fusedops::cuda {
namespace {

// Element i of c from its sum over the splits. T: dtype of the product; C: type of c.
template <class T, class C>
__global__ void __launch_bounds__(kThreads)
    sum_splits_kernel(const compute_t<T>* partials, int64_t splits, int64_t count, C* c, int64_t c_stride, bool adds,
                      const ElementEpilogue<T> epilogue, const Divisor columns) {
  begin_kernel();
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  compute_t<T> sum = 0;
#pragma unroll 8
  for (int64_t split = 0; split < splits; ++split) sum += partials[split * count + i];
  const auto [row, column] = columns.divide(i);
  const int64_t at = row * c_stride + column;
  sum = epilogue.finish(sum, at, column);
  c[at] = from_compute<C>(adds ? sum + to_compute(c[at]) : sum);
}

template <class T, class C>
Status sum_splits(const Matmul& product, const void* partials, int64_t splits, const Context& context) {
  const int64_t count = product.m * product.n;
  return launch(context, sum_splits_kernel<T, C>, (count + kThreads - 1) / kThreads, kThreads,
                static_cast<const compute_t<T>*>(partials), splits, count, static_cast<C*>(product.c), product.c_stride,
                product.adds, ElementEpilogue<T>(product.epilogue), Divisor(product.n));
}

template <class T>
Status sum_splits(const Matmul& product, const void* partials, int64_t splits, const Context& context) {
  return product.has_compute_dtype_c ? sum_splits<T, compute_t<T>>(product, partials, splits, context)
                                     : sum_splits<T, T>(product, partials, splits, context);
}

template <class T>
Status run(const Matmul& product, compute_t<T>* partials, const GpuProperties& gpu, const Context& context) {
  constexpr int64_t kMultiple = 64;  // keeps the alignment of the operands
  const int64_t count = product.m * product.n;
  const int64_t depth = ((product.k - 1) / product.splits / kMultiple + 1) * kMultiple;
  const int64_t whole = product.k / depth, rest = product.k % depth;

  Matmul part = product;
  part.to_sums(/*add=*/false).without_workspace();
  part.is_split = true;
  part.epilogue = {};
  part.c = partials;
  part.c_stride = product.n;
  part.k = depth;
  part.batch = whole;
  part.a.batch_stride = depth * (product.a.transposed ? product.a.stride : 1);
  part.b.batch_stride = depth * (product.b.transposed ? 1 : product.b.stride);
  if (whole > 0) FUSEDOPS_TRY(multiply(part, gpu, nullptr, context));
  if (rest > 0) {
    part.a.data = static_cast<const T*>(product.a.data) + whole * part.a.batch_stride;
    part.b.data = static_cast<const T*>(product.b.data) + whole * part.b.batch_stride;
    part.c = partials + whole * count;
    part.k = rest;
    part.batch = 1;
    FUSEDOPS_TRY(multiply(part, gpu, nullptr, context));
  }
  return sum_splits<T>(product, partials, whole + (rest > 0), context);
}

}  // namespace

Status matmul_split_k(const Matmul& product, const GpuProperties& gpu, void* workspace, const Context& context) {
  return dispatch(product.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return run<T>(product, static_cast<compute_t<T>*>(workspace), gpu, context);
  });
}

Status finish_sums(const Matmul& product, const void* partials, int64_t splits, const Context& context) {
  if (product.m == 0 || product.n == 0) return {};
  return dispatch(product.dtype, [&](auto tag) {
    return sum_splits<typename decltype(tag)::type>(product, partials, splits, context);
  });
}

}  // namespace fusedops::cuda
