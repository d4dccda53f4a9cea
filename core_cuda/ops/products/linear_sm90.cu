#include "ops/products/gated_linear_sm90.cuh"
#include "ops/products/linear_sm90.cuh"

namespace fusedops::cuda {

Status linear_sm90(const Matmul& product, const Context& context) {
  return product.dtype == DType::f16 ? linear_sm90<f16>(product, context) : linear_sm90<bf16>(product, context);
}

Status gated_linear_sm90(const GatedLinear& call, const Context& context) {
  return call.dtype == DType::f16 ? gated_sm90<f16>(call, context) : gated_sm90<bf16>(call, context);
}

}  // namespace fusedops::cuda
