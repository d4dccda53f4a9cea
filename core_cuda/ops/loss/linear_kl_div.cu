// The CUDA steps of linear_kl_div. Limit: the products. Each row of both heads has a block, which reads its logits
// three times: for the log-sum-exps, the divergence and dz.
#include "core/cuda/reduce.cuh"
#include "core/cuda/rows.cuh"
#include "ops/loss/linear_kl_div.h"
#include "ops/products/matmul_kernels.h"

namespace fusedops {
namespace cuda {
namespace {

// Running maximum, and sum of exponentials relative to it.
template <class A>
struct OnlineSum {
  A max = -std::numeric_limits<A>::infinity(), sum = 0;

  __device__ void add(A z) {
    if (z > max) {
      sum *= exp2_or_zero((max - z) * A(kLog2E));
      max = z;
    }
    sum += exp2_or_zero((z - base(max)) * A(kLog2E));
  }

  // Over the threads of the block. `scratch` has room for two times 32 values.
  __device__ LogSoftmax<A> of_block(A (*scratch)[32]) const {
    const A largest = reduce_threads<kThreads>(kThreads, max, scratch[0], [](A a, A b) { return fmax(a, b); });
    const A own = sum == 0 ? A(0) : sum * exp2_or_zero((base(max) - base(largest)) * A(kLog2E));
    return {largest, std::log(reduce_threads<kThreads>(kThreads, own, scratch[1], [](A a, A b) { return a + b; }))};
  }

 private:
  static __device__ A base(A max) { return max == -std::numeric_limits<A>::infinity() ? A(0) : max; }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    divergence_rows_kernel(const Divergences<compute_t<T>> rows, const LogitPairs<T> pairs, int64_t first) {
  using A = compute_t<T>;
  begin_kernel();
  const int64_t i = blockIdx.x, row = first + i;
  // Calls body(z, target z, dz) for the thread's classes.
  const auto each = [&](auto&& body) {
    for (int b = 0; b < pairs.count; ++b) {
      const LogitPair<T>& pair = pairs.blocks[b];
      const int64_t columns = pair.model.columns, start = i * columns;
#pragma unroll 4
      for (int64_t column = threadIdx.x; column < columns; column += kThreads)
        body(pair.model.logit(pair.model.products[start + column], column).value,
             pair.target.logit(pair.target.products[start + column], column).value, pair.dz + start + column);
    }
  };
  const bool needs_dz = pairs.blocks[0].dz;
  if (!rows.counts(row)) {  // uniform over the block
    if (rows.losses && threadIdx.x == 0) rows.losses[row] = 0;
    if (needs_dz) each([](A, A, T* dz) { *dz = T{}; });
    return;
  }
  __shared__ A scratch[4][32];
  __shared__ Sums<A, 2> scratch_of_sums[32];
  OnlineSum<A> model, target;
  each([&](A z, A target_z, const T*) {
    model.add(z);
    target.add(target_z);
  });
  const LogSoftmax<A> log_p = model.of_block(scratch), log_q = target.of_block(scratch + 2);
  Sums<A, 2> sums;  // KL(q || m) and KL(p || m)
  each([&](A z, A target_z, const T*) {
    const auto c = rows.of_class(log_p(z), log_q(target_z));
    sums[0] += rows.term(c.q, c.log_q);
    sums[1] += rows.term(c.p, c.log_p);
  });
  sums = reduce_threads<kThreads>(kThreads, sums, scratch_of_sums,
                                  [](const Sums<A, 2>& a, const Sums<A, 2>& b) { return a + b; });
  if (rows.losses && threadIdx.x == 0) rows.losses[row] = rows.divergence(sums[0], sums[1]);
  if (!needs_dz) return;
  const A factor = rows.upstream(row) * pairs.blocks[0].model.factor;
  each([&](A z, A target_z, T* dz) {
    *dz = from_compute<T>(rows.derivative(rows.of_class(log_p(z), log_q(target_z)), sums[1]) * factor);
  });
}

template <class A>
__global__ void __launch_bounds__(kSumThreads) count_divergences_kernel(const Divergences<A> rows, A* count) {
  begin_kernel();
  A counted = 0;
  for (int64_t row = threadIdx.x; row < rows.rows; row += kSumThreads) counted += rows.counts(row);
  counted = block_sum<kSumThreads>(counted);
  if (threadIdx.x == 0) *count = counted;
}

template <class A>
__global__ void __launch_bounds__(kSumThreads) total_divergence_kernel(const Divergences<A> rows, A* loss) {
  begin_kernel();
  A sum = 0;
  for (int64_t row = threadIdx.x; row < rows.rows; row += kSumThreads) sum += rows.losses[row];
  sum = block_sum<kSumThreads>(sum);
  if (threadIdx.x == 0) *loss = rows.reduction == Reduction::sum ? sum : sum / *rows.count;
}

struct Gpu {
  static Status multiply(const Matmul& product, void* workspace, const Context& context) {
    return multiply_cuda(product, workspace, context);
  }

  static Status finish_sums(const Matmul& product, const void* sums, int64_t count, const Context& context) {
    return cuda::finish_sums(product, sums, count, context);
  }

  template <class A>
  static Status count(const Divergences<A>& rows, A* count, const Context& context) {
    return launch(context, count_divergences_kernel<A>, 1, kSumThreads, rows, count);
  }

  template <class A>
  static Status total(const Divergences<A>& rows, A* loss, const Context& context) {
    return launch(context, total_divergence_kernel<A>, 1, kSumThreads, rows, loss);
  }

  template <class A, class T>
  static Status store_rows(const Divergences<A>& rows, const LogitPairs<T>& pairs, int64_t first, int64_t count,
                           const Context& context) {
    return launch(context, divergence_rows_kernel<T>, count, kThreads, rows, pairs, first);
  }
};

}  // namespace
}  // namespace cuda

Status linear_kl_div_cuda(const Call& call) {
  return dispatch(call.inputs[kKlDivAt.x]->dtype,
                  [&](auto tag) { return linear_kl_div_forward<typename decltype(tag)::type, cuda::Gpu>(call); });
}

Status linear_kl_div_backward_cuda(const Call& call) {
  return dispatch(call.inputs[kKlDivBackwardAt.x]->dtype,
                  [&](auto tag) { return linear_kl_div_gradient<typename decltype(tag)::type, cuda::Gpu>(call); });
}

}  // namespace fusedops
