#include "ops/matmul_mma16.cuh"

namespace fusedops::cuda {

Status matmul_bf16(const Matmul& product, const Context& context) { return matmul16<bf16>(product, context); }

}  // namespace fusedops::cuda
