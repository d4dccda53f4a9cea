// The forward of both norms, with and without a residual added first.
//
// Limit: memory bandwidth. Every element is read once, held in registers while its row is summed, and written once. The
// weight is loaded along with the row, from the cache: behind the sum it would add its latency to every row's.
#pragma once

#include "core/rows.cuh"
#include "ops/norm_parameters.cuh"

namespace fusedops::cuda {

// Packs per thread: few enough for the registers of many threads, whose loads hide each other's latency.
template <class T>
inline constexpr int kNormPacks = sizeof(T) == 2 ? 2 : 4;

// Registers per thread: three blocks of 512 threads have 40.
template <class T, bool kCentered, bool kMixed>
inline constexpr int kNormRegisters = sizeof(T) != 2 ? 64 : kCentered && kMixed ? 56 : 40;

// A thread's part of a chunk of its row.
template <bool kAligned, bool kCentered, bool kMixed, bool kLong, class T>
class NormRow {
 public:
  using A = compute_t<T>;
  using Index = std::conditional_t<kLong, int64_t, int>;  // of a column; 64 bits take twice the registers
  static constexpr int kPacks = kNormPacks<T>, kPack = kPackSize<T>;

  __device__ NormRow(const NormForward<T>& norm, const RowThread& me) : norm_(norm), me_(me) {}

  // x, or x + residual rounded to x's dtype; zeros behind the end of the row.
  __device__ void load(Index chunk) {
    each([&](int p, int64_t at,
             int64_t count) { x_[p] = load_pack<kAligned>(norm_.x + me_.row * norm_.x_stride + at, count); },
         chunk);
    if (!norm_.residual) return;
    Pack<T> residual[kPacks];
    each(
        [&](int p, Index at, Index count) {
          residual[p] = load_pack<kAligned>(norm_.residual + me_.row * norm_.residual_stride + at, count);
        },
        chunk);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      A sums[kPack];
#pragma unroll
      for (int i = 0; i < kPack; ++i) sums[i] = element(x_[p], i) + element(residual[p], i);
      x_[p] = rounded<T>(sums);
    }
  }

  __device__ void store_sum(Index chunk) const {
    if (!norm_.residual) return;
    each([&](int p, int64_t at,
             int64_t count) { store_pack<kAligned>(x_[p], norm_.s + me_.row * norm_.cols + at, count); },
         chunk);
  }

  __device__ void load_parameters(Index chunk) {
    each(
        [&](int p, Index at, Index count) {
          weight_[p].load(norm_.weight, at, count);
          if constexpr (kCentered) bias_[p].load(norm_.bias, at, count);
        },
        chunk);
  }

  // The sum of term(x) over this thread's elements. An aligned row ends with a whole pack.
  template <class Term>
  __device__ A sum(Index chunk, Term term) {
    A total = 0;
    each(
        [&](int p, Index, Index count) {
          if (count <= 0) return;
          forget(x_[p]);
#pragma unroll
          for (int i = 0; i < kPack; ++i)
            if (kAligned || i < count) total += term(element(x_[p], i));
        },
        chunk);
    return total;
  }

  __device__ void store(Index chunk, A mean, A rstd) {
    const bool has_weight = norm_.weight.data, has_bias = norm_.bias.data;
    const A offset = static_cast<A>(norm_.offset);
    each(
        [&](int p, Index at, Index count) {
          if (count <= 0) return;
          forget(x_[p]);
          A y[kPack];
#pragma unroll
          for (int i = 0; i < kPack; ++i) {
            const A x = element(x_[p], i);
            y[i] = (kCentered ? x - mean : x) * rstd;
            if (has_weight) y[i] *= weight_[p][i] + offset;
            if (kCentered && has_bias) y[i] += bias_[p][i];
          }
          store_pack<kAligned>(rounded<T>(y), norm_.y + me_.row * norm_.cols + at, count);
        },
        chunk);
  }

 private:
  // body(p, first column, columns from there on) for this thread's packs.
  template <class Body>
  __device__ void each(Body body, Index chunk) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const Index at = chunk + me_.at<T>(p);
      body(p, at, me_.row < norm_.rows ? static_cast<Index>(norm_.cols) - at : Index(0));
    }
  }

  const NormForward<T>& norm_;
  const RowThread& me_;
  Pack<T> x_[kPacks];
  HeldParameter<kAligned, kMixed, T> weight_[kPacks], bias_[kPacks];
};

// kLong: the row does not fit into the registers of its threads; it is read again, mostly from the L2 cache.
template <bool kAligned, bool kCentered, bool kMixed, bool kLong, class T>
__global__ void __maxnreg__((kLong ? 64 : kNormRegisters<T, kCentered, kMixed>))
    norm_forward_kernel(const __grid_constant__ NormForward<T> norm, const __grid_constant__ RowGroups groups) {
  using A = compute_t<T>;
  begin_kernel();
  const RowThread me(groups);
  NormRow<kAligned, kCentered, kMixed, kLong, T> row(norm, me);
  const auto for_chunks = [&](auto body) {
    if constexpr (kLong)
      for (int64_t chunk = 0; chunk < norm.cols; chunk += groups.chunk) body(chunk);
    else
      body(0);
  };
  const auto add = [](A a, A b) { return a + b; };
  __shared__ A scratch[2][32];
  const A inverse_size = A(1) / static_cast<A>(norm.cols);

  A mean = 0, squares = 0;
  for_chunks([&](auto chunk) {
    row.load(chunk);
    if constexpr (!kLong) row.load_parameters(chunk);
    row.store_sum(chunk);
    if constexpr (kCentered)
      mean += row.sum(chunk, [](A x) { return x; });
    else
      squares += row.sum(chunk, [](A x) { return x * x; });
  });
  if constexpr (kCentered) {
    mean = row_reduce(me, mean, scratch[0], add) * inverse_size;
    for_chunks([&](auto chunk) {  // around the mean: nothing cancels
      if constexpr (kLong) row.load(chunk);
      squares += row.sum(chunk, [=](A x) { return (x - mean) * (x - mean); });
    });
  }
  const A variance = row_reduce(me, squares, scratch[1], add) * inverse_size;
  const A rstd = rsqrt(variance + static_cast<A>(norm.eps));
  for_chunks([&](auto chunk) {
    if constexpr (kLong) row.load(chunk), row.load_parameters(chunk);
    row.store(chunk, mean, rstd);
  });
  if (me.lane == 0 && me.row < norm.rows) {
    norm.rstd[me.row] = rstd;
    if constexpr (kCentered) norm.mean[me.row] = mean;
  }
}

template <bool kCentered, class T>
Status norm_forward(const NormForward<T>& norm, const Context& context) {
  const RowGroups groups = row_groups<T, kNormPacks<T>>(norm.cols);
  const bool aligned = are_rows_aligned(norm.cols, norm.x, norm.x_stride) &&
                       are_rows_aligned(norm.cols, norm.residual, norm.residual_stride) && is_aligned(norm.y) &&
                       is_aligned(norm.s) && is_aligned(norm.weight.data) && is_aligned(norm.bias.data);
  const bool mixed = sizeof(T) == 2 && (norm.weight.is_f32 || norm.bias.is_f32);
  const bool is_long = norm.cols > groups.chunk;
  const auto kernel = !aligned  ? norm_forward_kernel<false, kCentered, true, true, T>  // of any length
                      : is_long ? norm_forward_kernel<true, kCentered, true, true, T>
                      : mixed   ? norm_forward_kernel<true, kCentered, sizeof(T) == 2, false, T>
                                : norm_forward_kernel<true, kCentered, false, false, T>;
  return launch(context, kernel, groups.blocks(norm.rows), groups.block_threads, norm, groups);
}

}  // namespace fusedops::cuda
