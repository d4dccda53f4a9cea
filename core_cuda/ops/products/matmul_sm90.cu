#include "ops/products/matmul_sm90.cuh"

namespace fusedops::cuda {

Status matmul_f16_sm90(const Matmul& product, const Context& context) {
  return matmul_sm90<f16, LargeTiles, StoreProduct<f16, LargeTiles>>(product, context);
}

Status matmul_bf16_sm90(const Matmul& product, const Context& context) {
  return matmul_sm90<bf16, LargeTiles, StoreProduct<bf16, LargeTiles>>(product, context);
}

}  // namespace fusedops::cuda
