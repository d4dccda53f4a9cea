// The forward of both norms, with and without a residual added first.
//
// Limit: memory bandwidth, and for 16-bit rows not far from it the rate of instructions: about 27 per element take as
// long as its bytes. Every element is read once, held in registers while its row is summed, and written once; of rows
// that are longer, what neither a block nor a cluster holds is read again.
#pragma once

#include "core/row_cluster.cuh"
#include "ops/norm_parameters.cuh"

namespace fusedops::cuda {

// Many rows: 4 packs per thread, so that 32 elements of 16 bits share what a thread costs; parameters are loaded behind
// the sums, where they take no registers from the row. Few rows: half the packs, for twice the threads, and parameters
// along with the row: latency is all. The two have the same bits: see row_sum(). Rows chunk by chunk do not fit into
// the registers of their threads: see core/row_cluster.cuh.
enum class NormWay { many, few, chunks };

constexpr int norm_packs(NormWay way) { return way == NormWay::few ? 2 : 4; }
constexpr int norm_threads(NormWay way) { return way == NormWay::few ? 1024 : 512; }  // per row, at most

// A thread's part of a chunk of its row.
template <bool kAligned, bool kCentered, bool kMixed, NormWay kWay, int kThreads, class T>
class NormRow {
 public:
  static constexpr bool kLong = kWay == NormWay::chunks;
  using A = compute_t<T>;
  using Index = std::conditional_t<kLong, int64_t, int>;  // of a column; 64 bits take twice the instructions
  static constexpr int kPacks = norm_packs(kWay), kPack = kPackSize<T>;
  using Partial = Sums<A, kPacks / 2>;

  __device__ NormRow(const NormForward<T>& norm, const RowThread<kThreads>& me, bool is_first_block = true)
      : norm_(norm),
        me_(me),
        is_first_block_(is_first_block),
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

  __device__ void load_parameters() {
    each(0, [&](int p, Index at, Index count) { load_parameters(p, at, count); });
  }

  // What remains once the row and the parameters are there.
  __device__ void normalize(A (&scratch)[2][32], A inverse_size) {
    normalize_chunks(
        inverse_size, [](auto body) { body(0, [] {}); },
        [&](const Partial& sums, int which) { return row_sum(me_, sums, scratch[which]); });
  }

  // Of a row that is loaded chunk by chunk: once if its cluster holds it, else again and again.
  __device__ void normalize_long(const RowGroups& groups, RowCluster& cluster, A (&scratch)[2][32],
                                 A (&of_blocks)[2][kMostCluster], A inverse_size) {
    bool held = false;
    if (groups.holds(norm_.cols)) groups.each_chunk(norm_.cols, [&](Index chunk) { prefetch_parameters(chunk); });
    normalize_chunks(
        inverse_size,
        [&](auto body) {
          groups.each_chunk(norm_.cols, [&](Index chunk) {
            body(chunk, [&] {
              if (!held) load(chunk);
            });
          });
          held = groups.holds(norm_.cols);
        },
        [&](const Partial& sums, int which) {
          return cluster.reduce(row_sum(me_, sums, scratch[which]), of_blocks[which], [](A a, A b) { return a + b; });
        });
  }

 private:
  __device__ void load_parameters(int p, Index at, Index count) {
    const Index column = at + me_.template at<T>(0);
    weight_[p].load(norm_.weight, column, count, kAbsentWeight);
    if constexpr (kCentered) bias_[p].load(norm_.bias, column, count, kAbsentBias);
  }

  // Into the L2 cache, without a register: few rows would wait for memory once for every pack.
  __device__ void prefetch_parameters(Index chunk) const {
    each(chunk, [&](int, Index at, Index count) {
      if (count <= 0) return;
      const int64_t column = at + me_.template at<T>(0);
      prefetch_parameter<T>(norm_.weight, column);
      if constexpr (kCentered) prefetch_parameter<T>(norm_.bias, column);
    });
  }

  // for_chunks calls a body with the start of each chunk and what loads it; sum gives the row's sum: the first, the
  // second.
  template <class ForChunks, class Sum>
  __device__ void normalize_chunks(A inverse_size, ForChunks for_chunks, Sum sum) {
    Partial total, squares;
    for_chunks([&](Index chunk, auto load) {
      load();
      if (norm_.residual) store_rows(x_, norm_.s, chunk);
      if constexpr (kCentered)
        add(total, chunk, [](A x, A sum) { return sum + x; });
      else
        add(squares, chunk, [](A x, A sum) { return fused(x, x, sum); });
    });
    A mean = 0;
    if constexpr (kCentered) {
      mean = sum(total, 0) / static_cast<A>(norm_.cols);  // exact for a row of equal numbers

      for_chunks([&](Index chunk, auto load) {  // around the mean: nothing cancels
        load();
        add(squares, chunk, [=](A x, A sum) { return fused(x - mean, x - mean, sum); });
      });
    }
    const A variance = product(sum(squares, 1), inverse_size);
    const A rstd = rsqrt(variance + static_cast<A>(norm_.eps));
    for_chunks([&](Index chunk, auto load) {
      load();
      store(chunk, mean, rstd);
    });
    if (me_.lane == 0 && me_.row < norm_.rows && is_first_block_) {
      norm_.rstd[me_.row] = rstd;
      if constexpr (kCentered) norm_.mean[me_.row] = mean;
    }
  }

  // Adds this thread's elements: sum = step(x, sum) for each. An aligned row ends with a whole pack.
  template <class Step>
  __device__ void add(Partial& sums, Index chunk, Step step) {
    each(chunk, [&](int p, Index, Index count) {
      forget(x_[p]);
      A part = 0;
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        if (kAligned || i < count) part = step(element(x_[p], i), part);
      sums[p % (kPacks / 2)] += !kAligned || count > 0 ? part : A(0);
    });
  }

  __device__ void store(Index chunk, A mean, A rstd) {
    T* row = norm_.y + me_.row * norm_.cols + me_.template at<T>(0);
    const A offset = !kCentered && norm_.weight.data ? static_cast<A>(norm_.offset) : A(0);
    each(chunk, [&](int p, Index at, Index count) {
      if constexpr (kWay != NormWay::few) load_parameters(p, at, count);
      forget(x_[p]);
      A y[kPack];
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const A x = element(x_[p], i);
        y[i] = kCentered ? fused(product(x - mean, rstd), weight_[p][i], bias_[p][i])
                         : product(product(x, rstd), weight_[p][i] + offset);
      }
      store_row_pack<kAligned>(rounded<T>(y), row + at, count);
    });
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
  const bool is_first_block_;  // of those that share the row
  const Index columns_;        // from the thread's first one on; none in a row behind the last
  Pack<T> x_[kPacks];
  HeldParameter<kAligned, kMixed, T> weight_[kPacks], bias_[kPacks];
};

// Four blocks of 256 threads, or two of 512, share a multiprocessor at 64 registers a thread; 1024 threads of a block
// have 64. Misaligned rows would spill.
template <bool kAligned, NormWay kWay>
inline constexpr int kNormRegisters = kAligned || kWay == NormWay::few ? 64 : 80;

template <bool kAligned, bool kCentered, bool kMixed, NormWay kWay, int kThreads, class T>
__global__ void __maxnreg__((kNormRegisters<kAligned, kWay>))
    norm_forward_kernel(const __grid_constant__ NormForward<T> norm, const __grid_constant__ RowGroups groups,
                        compute_t<T> inverse_size) {
  constexpr bool kLong = kWay == NormWay::chunks;
  begin_kernel();
  const RowThread<kThreads> me(groups, kLong ? groups.cluster_index() : blockIdx.x);
  NormRow<kAligned, kCentered, kMixed, kWay, kThreads, T> row(norm, me, !kLong || groups.rank() == 0);
  __shared__ compute_t<T> scratch[2][32];
  if constexpr (kLong) {
    RowCluster cluster(groups);
    __shared__ compute_t<T> of_blocks[2][kMostCluster];
    row.normalize_long(groups, cluster, scratch, of_blocks, inverse_size);
  } else {
    row.load(0);
    if constexpr (kWay == NormWay::few) row.load_parameters();
    row.normalize(scratch, inverse_size);
  }
}

// For many aligned rows: kernels that know the number of threads of a row, for the lengths that models have.
template <bool kCentered, bool kMixed, class T>
auto norm_forward_kernel_for(int threads) {
  switch (threads) {
    case 128:
      return norm_forward_kernel<true, kCentered, kMixed, NormWay::many, 128, T>;
    case 256:
      return norm_forward_kernel<true, kCentered, kMixed, NormWay::many, 256, T>;
    case 512:
      return norm_forward_kernel<true, kCentered, kMixed, NormWay::many, 512, T>;
    default:
      return norm_forward_kernel<true, kCentered, kMixed, NormWay::many, 0, T>;
  }
}

template <bool kCentered, class T>
Status norm_forward(const NormForward<T>& norm, const Context& context) {
  using A = compute_t<T>;
  constexpr bool kCanMix = sizeof(T) == 2;
  const bool aligned = are_rows_aligned(norm.cols, norm.x, norm.x_stride) &&
                       are_rows_aligned(norm.cols, norm.residual, norm.residual_stride) && is_aligned(norm.y) &&
                       is_aligned(norm.s) && is_aligned(norm.weight.data) && is_aligned(norm.bias.data);
  const bool mixed = kCanMix && (norm.weight.is_f32 || norm.bias.is_f32);
  const auto run = [&](auto kernel, const RowGroups& groups) {
    return launch(context, kernel, groups.grid(norm.rows), norm, groups, A(1) / static_cast<A>(norm.cols));
  };
  constexpr NormWay kFew = NormWay::few, kMany = NormWay::many, kChunks = NormWay::chunks;
  const RowGroups groups = row_groups<T, norm_packs(kMany)>(norm.cols, 128, norm_threads(kMany));
  if (!groups.holds(norm.cols)) {
    const auto kernel = aligned ? norm_forward_kernel<true, kCentered, true, kChunks, 0, T>
                                : norm_forward_kernel<false, kCentered, true, kChunks, 0, T>;
    // Blocks of a cluster wait for each other: two of them, of many rows, for longer than a second read takes.
    const bool shared = norm.cols > 2 * int64_t(groups.chunk);
    return run(kernel, shared ? with_cluster(groups, norm.cols, kernel) : groups);
  }
  if (!aligned) return run(norm_forward_kernel<false, kCentered, true, kMany, 0, T>, groups);
  if (mixed) return run(norm_forward_kernel_for<kCentered, kCanMix, T>(groups.threads), groups);
  if (groups.blocks(norm.rows) > 2 * device_attribute(cudaDevAttrMultiProcessorCount))
    return run(norm_forward_kernel_for<kCentered, false, T>(groups.threads), groups);
  return run(norm_forward_kernel<true, kCentered, false, kFew, 0, T>,
             row_groups<T, norm_packs(kFew)>(norm.cols, 128, norm_threads(kFew)));
}

}  // namespace fusedops::cuda
