#include "ops/products/matmul_mma16.cuh"

namespace fusedops::cuda {

Status matmul_f16(const Matmul& product, const Context& context) { return matmul16<f16>(product, context); }

Status matmul_f16_sums(const Matmul& product, const Context& context) {
  return small_matmul16<float, f16>(product, context);
}

}  // namespace fusedops::cuda
