#include "ops/loss/linear_cross_entropy_sm90.cuh"

namespace fusedops::cuda {

template <class T>
Status sum_logits_sm90(const LossRows<float>& losses, const Matmul& product, const LogitBlock<T>& block,
                       RowStats<float>* fine, float* label_logits, const Context& context) {
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

template Status sum_logits_sm90(const LossRows<float>&, const Matmul&, const LogitBlock<f16>&, RowStats<float>*, float*,
                                const Context&);
template Status sum_logits_sm90(const LossRows<float>&, const Matmul&, const LogitBlock<bf16>&, RowStats<float>*,
                                float*, const Context&);
template Status differentiate_logits_sm90(const LossGradient<float>&, const Matmul&, const LogitBlock<f16>&, f16*,
                                          const Context&);
template Status differentiate_logits_sm90(const LossGradient<float>&, const Matmul&, const LogitBlock<bf16>&, bf16*,
                                          const Context&);

}  // namespace fusedops::cuda
