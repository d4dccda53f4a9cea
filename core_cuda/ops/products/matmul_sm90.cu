// One file for each kind of c: its layouts and dtypes share CUTLASS's templates, which take most of the time to
// compile.
#include "ops/products/matmul_sm90.cuh"

namespace fusedops::cuda {

Status matmul_f16_sm90(const Matmul& product, const Context& context) {
  return matmul_sm90<cutlass::half_t>(product, context);
}

Status matmul_bf16_sm90(const Matmul& product, const Context& context) {
  return matmul_sm90<cutlass::bfloat16_t>(product, context);
}

}  // namespace fusedops::cuda
