#include "ops/products/matmul_sm90.cuh"

namespace fusedops::cuda {

Status sums_sm90(const Matmul& product, const Context& context) {
  return product.dtype == DType::f16 ? matmul_sm90<cutlass::half_t, float>(product, context)
                                     : matmul_sm90<cutlass::bfloat16_t, float>(product, context);
}

Status split_sums_sm90(const Matmul& part, const Context& context) {
  return part.dtype == DType::f16 ? matmul_sm90<cutlass::half_t, float, SmallTiles>(part, context)
                                  : matmul_sm90<cutlass::bfloat16_t, float, SmallTiles>(part, context);
}

}  // namespace fusedops::cuda
