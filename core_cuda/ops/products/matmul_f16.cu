#include "ops/products/matmul_sm80.cuh"

namespace fusedops::cuda {

Status matmul_f16(const Matmul& product, ProductKernel kernel, const Context& context) {
  return matmul16<f16>(product, kernel, context);
}

}  // namespace fusedops::cuda
