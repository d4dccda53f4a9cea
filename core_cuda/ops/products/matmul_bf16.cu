#include "ops/products/matmul_mma16.cuh"

namespace fusedops::cuda {

Status matmul_bf16(const Matmul& product, const Context& context) { return matmul16<bf16>(product, context); }

Status matmul_bf16_sums(const Matmul& product, const Context& context) {
  return small_matmul16<float, bf16>(product, context);
}

}  // namespace fusedops::cuda
