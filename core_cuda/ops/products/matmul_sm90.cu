// All products for 9.x in one file: most of the time goes to what CUTLASS's templates have in common, which is compiled
// once.
#include "ops/loss/linear_cross_entropy_sm90.cuh"
#include "ops/products/gated_linear_sm90.cuh"
#include "ops/products/linear_sm90.cuh"
#include "ops/products/matmul_sm90.cuh"

namespace fusedops::cuda {

Status matmul_f16_sm90(const Matmul& product, const Context& context) {
  return matmul_sm90<cutlass::half_t>(product, context);
}

Status matmul_bf16_sm90(const Matmul& product, const Context& context) {
  return matmul_sm90<cutlass::bfloat16_t>(product, context);
}

Status sums_sm90(const Matmul& product, const Context& context) {
  return product.dtype == DType::f16 ? matmul_sm90<cutlass::half_t, float>(product, context)
                                     : matmul_sm90<cutlass::bfloat16_t, float>(product, context);
}

Status split_sums_sm90(const Matmul& part, const Context& context) {
  return part.dtype == DType::f16 ? matmul_sm90<cutlass::half_t, float, SmallTiles>(part, context)
                                  : matmul_sm90<cutlass::bfloat16_t, float, SmallTiles>(part, context);
}

Status linear_sm90(const Matmul& product, const Context& context) {
  return product.dtype == DType::f16 ? linear_sm90<cutlass::half_t>(product, context)
                                     : linear_sm90<cutlass::bfloat16_t>(product, context);
}

Status gated_linear_sm90(const GatedLinear& call, const Context& context) {
  return call.dtype == DType::f16 ? gated_sm90<cutlass::half_t>(call, context)
                                  : gated_sm90<cutlass::bfloat16_t>(call, context);
}

template <class T>
Status sum_logits_sm90(const LossRows<float>& losses, const Matmul& product, const LogitBlock<T>& block,
                       RowSums<float>* fine, float* label_logits, const Context& context) {
  StoreLoss<T> epilogue = {};
  epilogue.block = block;
  static_cast<LossRows<float>&>(epilogue.loss) = losses;
  epilogue.fine = fine;
  epilogue.label_logits = label_logits;
  return loss_sm90(product, epilogue, context);
}

template <class T>
Status differentiate_logits_sm90(const LossGradient<float>& gradient, const Matmul& product, const LogitBlock<T>& block,
                                 T* dz, const Context& context) {
  StoreLoss<T> epilogue = {};
  epilogue.block = block;
  epilogue.loss = gradient;
  epilogue.dz = dz;
  return loss_sm90(product, epilogue, context);
}

template Status sum_logits_sm90(const LossRows<float>&, const Matmul&, const LogitBlock<f16>&, RowSums<float>*, float*,
                                const Context&);
template Status sum_logits_sm90(const LossRows<float>&, const Matmul&, const LogitBlock<bf16>&, RowSums<float>*, float*,
                                const Context&);
template Status differentiate_logits_sm90(const LossGradient<float>&, const Matmul&, const LogitBlock<f16>&, f16*,
                                          const Context&);
template Status differentiate_logits_sm90(const LossGradient<float>&, const Matmul&, const LogitBlock<bf16>&, bf16*,
                                          const Context&);

}  // namespace fusedops::cuda
