#include "ops/experts/grouped_dispatch.h"

#include "ops/products/matmul_dispatch.h"

namespace fusedops::cuda {
namespace {

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
  const Groups& all = product.groups;
  return Matmul::as_given(product.dtype, all.groups, all.count, product.n, product.k,
                          {product.x.data, false, product.x.stride, 0}, product.b, product.y);
}

Matmul representative(const GroupedGradient& product) {
  const Groups& all = product.groups;
  return Matmul::as_given(product.dtype, all.groups, product.m, product.n, all.count,
                          {product.a.data, true, product.a.stride, 0}, {product.b.data, false, product.b.stride, 0},
                          product.c);
}

const GroupedEntry& choose_grouped(const Matmul& representative, const GpuProperties& gpu) {
  return first_that_accepts(kGroupedProducts, representative, gpu);
}

bool can_fuse_gate(const Matmul& representative, const GpuProperties& gpu) {
  return representative.n % 16 == 0 && choose_grouped(representative, gpu).kernel == K::sm90;
}

}  // namespace fusedops::cuda
