// The CUDA steps of linear_kl_div. Limit: the products. Each row of both heads has a block, which reads its logits once
// for the log-sum-exps and the divergence, and again for dz. With 0 < beta < 1 the divergence is a pass of its own.
#include "core/cuda/reduce.cuh"
#include "core/cuda/rows.cuh"
#include "ops/loss/linear_kl_div.h"
#include "ops/products/matmul_kernels.h"

namespace fusedops {
namespace cuda {
namespace {

// The sums of a row over its classes, of a head `a` and the other head `b`, relative to the maxima so far.
template <class A>
class OnlineDivergence {
  // Divergences near the largest number: a sum of unnormalized terms must not overflow.
  static constexpr A kScale = 0x1p-40;

 public:
  template <int kSize>
  __device__ void add(const A (&a)[kSize], const A (&b)[kSize]) {
    A most_a = max_a_, most_b = max_b_;
#pragma unroll
    for (int i = 0; i < kSize; ++i) most_a = fmax(most_a, a[i]), most_b = fmax(most_b, b[i]);
    rescale(most_a, most_b);
    const A base_a = base(max_a_), base_b = base(max_b_);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const A weight = exponential(a[i] - base_a);
      sum_a_ += weight;
      moment_ += Divergences<A>::term(weight, kScale * ((a[i] - base_a) - (b[i] - base_b)));
      sum_b_ += exponential(b[i] - base_b);
    }
  }

  // Adds the sums of all threads of the block.
  __device__ void finish() {
    __shared__ A scratch[2][32];
    __shared__ Sums<A, 3> scratch_of_sums[32];
    const auto greater = [](A x, A y) { return fmax(x, y); };
    const A most_a = reduce_threads<kThreads>(kThreads, max_a_, scratch[0], greater);
    rescale(most_a, reduce_threads<kThreads>(kThreads, max_b_, scratch[1], greater));
    Sums<A, 3> sums{{sum_a_, sum_b_, moment_}};
    sums = reduce_threads<kThreads>(kThreads, sums, scratch_of_sums,
                                    [](const Sums<A, 3>& x, const Sums<A, 3>& y) { return x + y; });
    sum_a_ = sums[0], sum_b_ = sums[1], moment_ = sums[2];
  }

  __device__ LogSoftmax<A> of_a() const { return {max_a_, std::log(sum_a_)}; }
  __device__ LogSoftmax<A> of_b() const { return {max_b_, std::log(sum_b_)}; }
  // KL(a || b)
  __device__ A divergence() const { return moment_ / sum_a_ / kScale + std::log(sum_b_ / sum_a_); }

 private:
  static __device__ A base(A max) { return max == -std::numeric_limits<A>::infinity() ? A(0) : max; }
  static __device__ A exponential(A x) { return exp2_or_zero(x * A(kLog2E)); }

  __device__ void rescale(A max_a, A max_b) {
    const A below_a = base(max_a_) - base(max_a), below_b = base(max_b_) - base(max_b);
    // Sums that no term has reached stay 0 for any distance of the bases.
    const A factor_a = sum_a_ == 0 ? A(0) : exponential(below_a), factor_b = sum_b_ == 0 ? A(0) : exponential(below_b);
    moment_ = Divergences<A>::term(factor_a, moment_ + kScale * (below_a - below_b) * sum_a_);
    sum_a_ *= factor_a, sum_b_ *= factor_b;
    max_a_ = max_a, max_b_ = max_b;
  }

  A max_a_ = -std::numeric_limits<A>::infinity(), max_b_ = max_a_;
  A sum_a_ = 0, sum_b_ = 0;  // of exponentials
  A moment_ = 0;             // sum of exponentials of a, times kScale and the difference of both logits
};

template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads)
    divergence_rows_kernel(const Divergences<compute_t<T>> rows, const LogitPairs<T> pairs, int64_t first) {
  using A = compute_t<T>;
  constexpr int kSize = kPackSize<T>, kWideSize = kPackSize<A>;
  begin_kernel();
  const int64_t i = blockIdx.x, row = first + i;
  const auto load = [](const LogitBlock<T>& block, int64_t start, int64_t column, A(&logits)[kSize]) {
#pragma unroll
    for (int at = 0; at < kSize; at += kWideSize) {
      const int64_t count = block.columns - column - at;
      const Pack<A> sums = load_row_pack<kAligned>(block.products + start + column + at, count);
#pragma unroll
      for (int e = 0; e < kWideSize; ++e)
        logits[at + e] = kAligned || e < count ? block.logit(sums.values[e], column + at + e).value
                                               : -std::numeric_limits<A>::infinity();
    }
  };
  // Calls body(z, target z, dz, count) for packs of the thread's classes. Logits behind the row are -inf.
  const auto each = [&](auto&& body) {
    for (int b = 0; b < pairs.count; ++b) {
      const LogitPair<T>& pair = pairs.blocks[b];
      const int64_t columns = pair.model.columns, start = i * columns;
      for (int64_t column = threadIdx.x * kSize; column < columns; column += kThreads * kSize) {
        A z[kSize], target_z[kSize];
        load(pair.model, start, column, z);
        load(pair.target, start, column, target_z);
        body(z, target_z, pair.dz + start + column, columns - column);
      }
    }
  };
  const bool needs_dz = pairs.blocks[0].dz;
  if (!rows.counts(row)) {  // uniform over the block
    if (rows.losses && threadIdx.x == 0) rows.losses[row] = 0;
    if (needs_dz) each([](auto&, auto&, T* dz, int64_t count) { store_row_pack<kAligned>(Pack<T>{}, dz, count); });
    return;
  }
  const bool is_of_model = rows.of_target == 0, is_one = is_of_model || rows.of_model == 0;
  OnlineDivergence<A> online;
  each([&](auto& z, auto& target_z, T*, int64_t) {
    if (is_of_model)
      online.add(z, target_z);
    else
      online.add(target_z, z);
  });
  online.finish();
  const LogSoftmax<A> log_p = is_of_model ? online.of_a() : online.of_b();
  const LogSoftmax<A> log_q = is_of_model ? online.of_b() : online.of_a();
  Sums<A, 2> sums;  // KL(q || m) and KL(p || m)
  if (is_one) {
    sums[is_of_model] = online.divergence();
  } else {
    each([&](auto& z, auto& target_z, T*, int64_t count) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) {
        if (!kAligned && e >= count) break;
        const auto c = rows.of_class(log_p(z[e]), log_q(target_z[e]));
        sums[0] += rows.term(c.q, c.log_q);
        sums[1] += rows.term(c.p, c.log_p);
      }
    });
    __shared__ Sums<A, 2> scratch[32];
    sums = reduce_threads<kThreads>(kThreads, sums, scratch,
                                    [](const Sums<A, 2>& a, const Sums<A, 2>& b) { return a + b; });
  }
  if (rows.losses && threadIdx.x == 0) rows.losses[row] = rows.divergence(sums[0], sums[1]);
  if (!needs_dz) return;
  const A factor = rows.upstream(row) * pairs.blocks[0].model.factor;
  each([&](auto& z, auto& target_z, T* dz, int64_t count) {
    A values[kSize];
#pragma unroll
    for (int e = 0; e < kSize; ++e)
      values[e] = rows.derivative(rows.of_class(log_p(z[e]), log_q(target_z[e])), sums[1]) * factor;
    store_row_pack<kAligned>(rounded<T>(values), dz, count);
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
    bool aligned = true;
    for (int b = 0; b < pairs.count; ++b) {
      const auto& [model, target, dz] = pairs.blocks[b];
      aligned = aligned && model.columns % kPackSize<T> == 0 && is_aligned(model.products) &&
                is_aligned(target.products) && is_aligned(dz);
    }
    return launch(context, aligned ? divergence_rows_kernel<true, T> : divergence_rows_kernel<false, T>, count,
                  kThreads, rows, pairs, first);
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
