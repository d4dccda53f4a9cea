// The forward of both norms, with and without a residual added first.
//
// Limit: memory bandwidth, and for 16-bit rows not far from it the rate of instructions: about 27 per element take as
// long as its bytes. Every element is read once, held in registers while its row is summed, and written once.
#pragma once

#include "core/rows.cuh"
#include "ops/norm_parameters.cuh"

namespace fusedops::cuda {

inline constexpr int kNormPacks = 4;      // per thread: overhead is shared by 32 elements of 16 bits
inline constexpr int kNormThreads = 512;  // per row, at most

// When a thread loads its part of the parameters. Early, along with the row, their latency is hidden: what few rows
// want. Late, behind the sums, they take no registers from the row: what many rows want, whose blocks hide latency.
enum class Parameters { early, late, chunk_by_chunk };

// A thread's part of a chunk of its row.
template <bool kAligned, bool kCentered, bool kMixed, Parameters kParameters, int kThreads, class T>
class NormRow {
 public:
  static constexpr bool kLong = kParameters == Parameters::chunk_by_chunk;
  using A = compute_t<T>;
  using Index = std::conditional_t<kLong, int64_t, int>;  // of a column; 64 bits take twice the instructions
  static constexpr int kPacks = kNormPacks, kPack = kPackSize<T>;

  __device__ NormRow(const NormForward<T>& norm, const RowThread<kThreads>& me)
      : norm_(norm),
        me_(me),
        columns_((me.row < norm.rows ? static_cast<Index>(norm.cols) : 0) - me.template at<T>(0)) {}

  // x, or x + residual rounded to x's dtype; zeros behind the end of the row.
  __device__ void load(Index chunk) {
    load_rows(x_, norm_.x, norm_.x_stride, chunk);
    if (!norm_.residual) return;
    Pack<T> residual[kPacks];
    load_rows(residual, norm_.residual, norm_.residual_stride, chunk);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      A sums[kPack];
#pragma unroll
      for (int i = 0; i < kPack; ++i) sums[i] = element(x_[p], i) + element(residual[p], i);
      x_[p] = rounded<T>(sums);
    }
  }

  __device__ void load_parameters(Index chunk) {
    each(chunk, [&](int p, Index at, Index count) {
      const Index column = at + me_.template at<T>(0);
      weight_[p].load(norm_.weight, column, count, kAbsentWeight);
      if constexpr (kCentered) bias_[p].load(norm_.bias, column, count, kAbsentBias);
    });
  }

  // What remains once the row and the parameters are there.
  __device__ void normalize(A (&scratch)[2][32], A inverse_size) {
    normalize_chunks(scratch, inverse_size, [](auto body) { body(0, [] {}); });
  }

  // Of a row that is loaded chunk by chunk, again and again.
  __device__ void normalize_long(int chunk_size, A (&scratch)[2][32], A inverse_size) {
    normalize_chunks(scratch, inverse_size, [&](auto body) {
      for (Index chunk = 0; chunk < norm_.cols; chunk += chunk_size)
        body(chunk, [&] { load(chunk), load_parameters(chunk); });
    });
  }

 private:
  // for_chunks calls a body with the start of each chunk and what loads it.
  template <class ForChunks>
  __device__ void normalize_chunks(A (&scratch)[2][32], A inverse_size, ForChunks for_chunks) {
    const auto add = [](A a, A b) { return a + b; };
    A mean = 0, squares = 0;
    for_chunks([&](Index chunk, auto load) {
      load();
      if (norm_.residual) store_rows(x_, norm_.s, chunk);
      if constexpr (kCentered)
        mean += sum(chunk, [](A x, A total) { return total + x; });
      else
        squares += sum(chunk, [](A x, A total) { return fused(x, x, total); });
    });
    if constexpr (kCentered) {
      mean = product(row_reduce(me_, mean, scratch[0], add), inverse_size);
      for_chunks([&](Index chunk, auto load) {  // around the mean: nothing cancels
        load();
        squares += sum(chunk, [=](A x, A total) { return fused(x - mean, x - mean, total); });
      });
    }
    const A variance = product(row_reduce(me_, squares, scratch[1], add), inverse_size);
    const A rstd = rsqrt(variance + static_cast<A>(norm_.eps));
    for_chunks([&](Index chunk, auto load) {
      load();
      store(chunk, mean, rstd);
    });
    if (me_.lane == 0 && me_.row < norm_.rows) {
      norm_.rstd[me_.row] = rstd;
      if constexpr (kCentered) norm_.mean[me_.row] = mean;
    }
  }

  // Adds this thread's elements: total = step(x, total) for each. An aligned row ends with a whole pack.
  template <class Step>
  __device__ A sum(Index chunk, Step step) {
    A total = 0;
    each(chunk, [&](int p, Index, Index count) {
      forget(x_[p]);
      A part = 0;
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        if (kAligned || i < count) part = step(element(x_[p], i), part);
      total += !kAligned || count > 0 ? part : A(0);
    });
    return total;
  }

  __device__ void store(Index chunk, A mean, A rstd) {
    if constexpr (kParameters == Parameters::late) load_parameters(chunk);
    const A offset = !kCentered && norm_.weight.data ? static_cast<A>(norm_.offset) : A(0);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      forget(x_[p]);
      A y[kPack];
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const A x = element(x_[p], i);
        y[i] = kCentered ? fused(product(x - mean, rstd), weight_[p][i], bias_[p][i])
                         : product(product(x, rstd), weight_[p][i] + offset);
      }
      x_[p] = rounded<T>(y);
    }
    store_rows(x_, norm_.y, chunk);
  }

  __device__ void load_rows(Pack<T> (&packs)[kPacks], const T* data, int64_t stride, Index chunk) const {
    const T* row = data + me_.row * stride + me_.template at<T>(0);
    each(chunk, [&](int p, Index at, Index count) { packs[p] = load_row_pack<kAligned>(row + at, count); });
  }

  __device__ void store_rows(const Pack<T> (&packs)[kPacks], T* data, Index chunk) const {
    T* row = data + me_.row * norm_.cols + me_.template at<T>(0);
    each(chunk, [&](int p, Index at, Index count) { store_row_pack<kAligned>(packs[p], row + at, count); });
  }

  // body(p, its place, columns from there on) for this thread's packs. Places count from the thread's first column.
  template <class Body>
  __device__ void each(Index chunk, Body body) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const Index at = chunk + p * (kThreads ? kThreads : me_.threads) * kPack;
      body(p, at, columns_ - at);
    }
  }

  const NormForward<T>& norm_;
  const RowThread<kThreads>& me_;
  const Index columns_;  // from the thread's first one on; none in a row behind the last
  Pack<T> x_[kPacks];
  HeldParameter<kAligned, kMixed, T> weight_[kPacks], bias_[kPacks];
};

// Four blocks of 256 threads share a multiprocessor at 64 registers a thread.
template <bool kMixed, Parameters kParameters, class T>
inline constexpr int kNormRegisters = kMixed                             ? 128
                                      : kParameters == Parameters::early ? 80
                                                                         : 64;

// Chunk by chunk: a row that does not fit into the registers of its threads is read again, mostly from the L2 cache.
template <bool kAligned, bool kCentered, bool kMixed, Parameters kParameters, int kThreads, class T>
__global__ void __maxnreg__((kNormRegisters<kMixed, kParameters, T>))
    norm_forward_kernel(const __grid_constant__ NormForward<T> norm, const __grid_constant__ RowGroups groups,
                        compute_t<T> inverse_size) {
  begin_kernel();
  const RowThread<kThreads> me(groups);
  NormRow<kAligned, kCentered, kMixed, kParameters, kThreads, T> row(norm, me);
  __shared__ compute_t<T> scratch[2][32];
  if constexpr (kParameters == Parameters::chunk_by_chunk) {
    row.normalize_long(groups.chunk, scratch, inverse_size);
  } else {
    row.load(0);
    if constexpr (kParameters == Parameters::early) row.load_parameters(0);
    row.normalize(scratch, inverse_size);
  }
}

// For aligned rows that fit: kernels that know the number of threads of a row, for the lengths that models have.
template <bool kCentered, Parameters kParameters, class T>
auto norm_forward_kernel_for(int threads) {
  switch (threads) {
    case 128:
      return norm_forward_kernel<true, kCentered, false, kParameters, 128, T>;
    case 256:
      return norm_forward_kernel<true, kCentered, false, kParameters, 256, T>;
    case 512:
      return norm_forward_kernel<true, kCentered, false, kParameters, 512, T>;
    default:
      return norm_forward_kernel<true, kCentered, false, kParameters, 0, T>;
  }
}

template <bool kCentered, class T>
Status norm_forward(const NormForward<T>& norm, const Context& context) {
  using A = compute_t<T>;
  constexpr bool kCanMix = sizeof(T) == 2;
  const RowGroups groups = row_groups<T, kNormPacks>(norm.cols, 128, kNormThreads);
  const bool aligned = are_rows_aligned(norm.cols, norm.x, norm.x_stride) &&
                       are_rows_aligned(norm.cols, norm.residual, norm.residual_stride) && is_aligned(norm.y) &&
                       is_aligned(norm.s) && is_aligned(norm.weight.data) && is_aligned(norm.bias.data);
  const bool mixed = kCanMix && (norm.weight.is_f32 || norm.bias.is_f32);
  const bool few = groups.blocks(norm.rows) <= 2 * device_attribute(cudaDevAttrMultiProcessorCount);
  constexpr Parameters kChunks = Parameters::chunk_by_chunk;
  const auto kernel = !aligned                   ? norm_forward_kernel<false, kCentered, true, kChunks, 0, T>
                      : norm.cols > groups.chunk ? norm_forward_kernel<true, kCentered, true, kChunks, 0, T>
                      : mixed                    ? norm_forward_kernel<true, kCentered, kCanMix, Parameters::late, 0, T>
                      : few ? norm_forward_kernel_for<kCentered, Parameters::early, T>(groups.threads)
                            : norm_forward_kernel_for<kCentered, Parameters::late, T>(groups.threads);
  return launch(context, kernel, groups.blocks(norm.rows), groups.block_threads, norm, groups,
                A(1) / static_cast<A>(norm.cols));
}

}  // namespace fusedops::cuda
