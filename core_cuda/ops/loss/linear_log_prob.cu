// The last step of linear_log_prob on a GPU, one thread per row; linear_cross_entropy.cu has the loops over the logits.
#include "core/cuda/launch.cuh"
#include "ops/loss/linear_log_prob.h"
#include "ops/loss/losses.cuh"

namespace fusedops {
namespace cuda {
namespace {

template <class A>
__global__ void __launch_bounds__(kThreads) log_probs_kernel(const LogProbs<A> results, const RowStats<A>* tile_stats,
                                                             const int64_t tiles, const A* label_logits) {
  begin_kernel();
  const int64_t row = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (row < results.rows) results.finish(row, results.combined(tile_stats + row * tiles, tiles), label_logits);
}

template <class T>
Status forward(const Call& call) {
  using A = compute_t<T>;
  const LinearLogits linear(call, kLogProbAt, LinearLogits::by_columns);
  const LogProbs<A> results(call, linear.rows, linear.columns);
  const LossMemory<A> memory(linear, call.workspace);
  FUSEDOPS_TRY(sum_logits_cuda<T>(linear, results, memory, call.context));
  return launch(call.context, log_probs_kernel<A>, (linear.rows + kThreads - 1) / kThreads, kThreads, results,
                memory.tile_stats, memory.tiles, memory.label_logits);
}

template <class T>
Status backward(const Call& call) {
  const LossProducts products(call, kLogProbBackwardAt, LinearLogits::by_columns, call.workspace);
  const LossGradient<compute_t<T>> gradient(call, kLinearLogProbBackward, products.linear.rows,
                                            products.linear.columns);
  return differentiate_logits_cuda<T>(products, gradient, call.context);
}

}  // namespace
}  // namespace cuda

Status linear_log_prob_cuda(const Call& call) {
  return dispatch(call.inputs[kLogProbAt.x]->dtype,
                  [&](auto tag) { return cuda::forward<typename decltype(tag)::type>(call); });
}

Status linear_log_prob_backward_cuda(const Call& call) {
  return dispatch(call.inputs[kLogProbBackwardAt.x]->dtype,
                  [&](auto tag) { return cuda::backward<typename decltype(tag)::type>(call); });
}

}  // namespace fusedops
