// The forward of both norms, with and without a residual added first.
//
// Limit: memory bandwidth. Every element is read once, held in registers while its row is summed, and written once. The
// weight is read again for each row, from the cache.
#pragma once

#include "core/rows.cuh"
#include "ops/norm_weight.cuh"

namespace fusedops::cuda {

inline constexpr int kNormPacks = 4;      // per thread
inline constexpr int kNormThreads = 512;  // at most: more would have too few registers

// This thread's part of a chunk of the row: x, or x + residual rounded to x's dtype.
template <bool kAligned, class T>
struct NormRow {
  const NormForward<T>& norm;
  const RowThread& me;
  Pack<T> packs[kNormPacks];

  __device__ void load(int64_t chunk) {
#pragma unroll
    for (int p = 0; p < kNormPacks; ++p) {
      const int64_t at = me.at<T>(chunk, p);
      packs[p] = load_pack<kAligned>(norm.x + me.row * norm.x_stride + at, count(at));
    }
    if (norm.residual) add_residual(chunk);
  }

  __device__ void add_residual(int64_t chunk) {
    Pack<T> residual[kNormPacks];
#pragma unroll
    for (int p = 0; p < kNormPacks; ++p) {
      const int64_t at = me.at<T>(chunk, p);
      residual[p] = load_pack<kAligned>(norm.residual + me.row * norm.residual_stride + at, count(at));
    }
#pragma unroll
    for (int p = 0; p < kNormPacks; ++p) {
      compute_t<T> sums[kPackSize<T>];
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) sums[i] = element(packs[p], i) + element(residual[p], i);
      packs[p] = rounded<T>(sums);
    }
  }

  __device__ void store_sum(int64_t chunk) const {
#pragma unroll
    for (int p = 0; p < kNormPacks; ++p) {
      const int64_t at = me.at<T>(chunk, p);
      store_pack<kAligned>(packs[p], norm.s + me.row * norm.cols + at, count(at));
    }
  }

  // The sum of term(x) over this thread's elements.
  template <class Term>
  __device__ compute_t<T> sum(int64_t chunk, Term term) {
    compute_t<T> total = 0;
#pragma unroll
    for (int p = 0; p < kNormPacks; ++p) {
      const int64_t n = count(me.at<T>(chunk, p));
      if (n <= 0) continue;
      forget(packs[p]);
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i)
        if (kAligned || i < n) total += term(element(packs[p], i));
    }
    return total;
  }

  // Elements of the row from `at` on; none for a row behind the last. An aligned row ends with a whole pack.
  __device__ int64_t count(int64_t at) const { return me.row < norm.rows ? norm.cols - at : 0; }
};

template <bool kAligned, bool kCentered, class T>
__global__ void __launch_bounds__(kNormThreads) norm_forward_kernel(NormForward<T> norm, RowGroups groups) {
  using A = compute_t<T>;
  begin_kernel();
  const RowThread me(groups);
  const auto add = [](A a, A b) { return a + b; };
  const A size = static_cast<A>(norm.cols);
  NormRow<kAligned, T> row{norm, me};
  // A row that fits into one chunk stays in registers; a longer one is read again, mostly from the L2 cache.
  const bool fits = norm.cols <= groups.chunk;

  __shared__ A scratch[2][32];
  A mean = 0, squares = 0;
  for (int64_t chunk = 0; chunk < norm.cols; chunk += groups.chunk) {
    row.load(chunk);
    if (norm.residual) row.store_sum(chunk);
    if constexpr (kCentered)
      mean += row.sum(chunk, [](A x) { return x; });
    else
      squares += row.sum(chunk, [](A x) { return x * x; });
  }
  if constexpr (kCentered) {
    mean = row_reduce(me, mean, scratch[0], add) / size;
    for (int64_t chunk = 0; chunk < norm.cols; chunk += groups.chunk) {
      if (!fits) row.load(chunk);
      squares += row.sum(chunk, [=](A x) { return (x - mean) * (x - mean); });
    }
  }
  const A variance = row_reduce(me, squares, scratch[1], add) / size;
  const A rstd = A(1) / sqrt(variance + static_cast<A>(norm.eps));
  if (me.lane == 0 && me.row < norm.rows) {
    norm.rstd[me.row] = rstd;
    if constexpr (kCentered) norm.mean[me.row] = mean;
  }

  for (int64_t chunk = 0; chunk < norm.cols; chunk += groups.chunk) {
    if (!fits) row.load(chunk);
#pragma unroll
    for (int p = 0; p < kNormPacks; ++p) {
      const int64_t at = me.at<T>(chunk, p), n = row.count(at);
      if (n <= 0) continue;
      A weight[kPackSize<T>], bias[kPackSize<T>] = {};
      load_weight<kAligned, T>(norm, at, weight);
      if constexpr (kCentered) load_parameter<kAligned, T>(norm.bias, at, n, A(0), bias);
      forget(row.packs[p]);
      A y[kPackSize<T>];
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) {
        const A x = element(row.packs[p], i);
        y[i] = kCentered ? (x - mean) * rstd * weight[i] + bias[i] : x * rstd * weight[i];
      }
      store_pack<kAligned>(rounded<T>(y), norm.y + me.row * norm.cols + at, n);
    }
  }
}

template <bool kCentered, class T>
Status norm_forward(const NormForward<T>& norm, const Context& context) {
  const RowGroups groups = row_groups<T, kNormPacks>(norm.cols, 128, kNormThreads);
  const bool aligned = are_rows_aligned(norm.cols, norm.x, norm.x_stride) &&
                       are_rows_aligned(norm.cols, norm.residual, norm.residual_stride) && is_aligned(norm.y) &&
                       is_aligned(norm.s) && is_aligned(norm.weight.data) && is_aligned(norm.bias.data);
  return launch(context, aligned ? norm_forward_kernel<true, kCentered, T> : norm_forward_kernel<false, kCentered, T>,
                groups.blocks(norm.rows), groups.block_threads, norm, groups);
}

}  // namespace fusedops::cuda
