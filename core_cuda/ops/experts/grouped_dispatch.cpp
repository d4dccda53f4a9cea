#include "ops/experts/grouped_dispatch.h"

#include "ops/products/matmul_dispatch.h"

namespace fusedops::cuda {
namespace {

// Kernels of groups read the operands as they were given. Matmul may turn those of a single row or column.
Matmul with_operands(Matmul product, const Matmul::Matrix& a, const Matmul::Matrix& b) {
  product.a = a;
  product.b = b;
  return product;
}

using K = GroupedKernel;
using P = const Matmul&;
using G = const GpuProperties&;

// clang-format off
constexpr GroupedEntry kGroupedProducts[] = {
  {K::none, "no kernel",
   [](P p, G) { return p.m == 0 || p.n == 0; },
   "the result is empty"},
  {K::sm90, "sm90 grouped tiles",
   [](P p, G gpu) {
     return gpu.has_sm90_kernels && size_of(p.dtype) == 2 && p.batch > 0 && p.k > 0 && can_tma_load_and_store(p);
   },
   "aligned"},
  {K::f64, "sm80 float64 grouped tiles 64x64",
   [](P p, G) { return p.dtype == DType::f64; },
   "float64"},
  {K::f32, "simt grouped tiles 64x64",
   [](P p, G) { return p.dtype == DType::f32; },
   "float32"},
  {K::sm80, "sm80 grouped tiles 64x64",
   [](P p, G) { return has_aligned_rows(p); },
   "aligned, but not for TMA"},
  {K::sm80_unaligned, "sm80 grouped tiles 64x64 through registers",
   [](P, G) { return true; },
   "misaligned"},
};
// clang-format on

}  // namespace

Matmul representative(const GroupedMatmul& product) {
  const Matmul::Matrix a = {product.x.data, false, product.x.stride, 0};
  Matmul result(product.dtype, 1, product.groups.count, product.n, product.k, a, product.b, product.y);
  result.batch = product.groups.groups;
  return with_operands(result, a, product.b);
}

Matmul representative(const GroupedGradient& product) {
  const Matmul::Matrix a = {product.a.data, true, product.a.stride, 0};
  const Matmul::Matrix b = {product.b.data, false, product.b.stride, 0};
  Matmul result(product.dtype, 1, product.m, product.n, product.groups.count, a, b, product.c);
  result.batch = product.groups.groups;
  return with_operands(result, a, b);
}

const GroupedEntry& choose_grouped(const Matmul& representative, const GpuProperties& gpu) {
  return first_that_accepts(kGroupedProducts, representative, gpu);
}

bool can_fuse_gate(const Matmul& representative, const GpuProperties& gpu) {
  return representative.n % 16 == 0 && choose_grouped(representative, gpu).kernel == K::sm90;
}

}  // namespace fusedops::cuda
