// The forward of both norms, with and without an added residual.
//
// Limit: memory bandwidth, closely followed by the instruction rate for 16-bit rows: about 27 instructions per element
// take as long as its bytes. Every element is read once, held in registers while its row is reduced, and written once.
// Shared memory holds the elements of many long rows. A row that neither a block nor a cluster holds is read for each
// sum and for the result.
#pragma once

#include "core/cuda/random_words.cuh"
#include "core/cuda/row_variants.cuh"
#include "ops/normalization/norm.h"

namespace fusedops::cuda {

// Four blocks of a staged row fit on a multiprocessor, three with a residual: while some of them reduce or wait for
// their clusters, others load.
inline constexpr int kStagedThreads = kRowThreads / 2;

// A thread's elements of a tile of its row. In the staged variant, a thread does the work of two threads of the cluster
// variant, one after the other, and keeps their sums apart, so a row has the same bits in both. Each has a tile.
template <bool kAligned, bool kCentered, bool kDropout, bool kMixed, RowVariant kVariant, int kThreads, class T>
class NormRow {
 public:
  using A = compute_t<T>;
  // The type of a column: 64-bit columns take twice the instructions.
  using Index = std::conditional_t<kVariant == RowVariant::tiles, int64_t, int>;
  static constexpr bool kStaged = kVariant == RowVariant::staged;
  // Shared memory holds the elements, so registers are free for parameters: those of the first place are loaded before
  // the last sum, those of the second place when a pack of the first one is stored. With one sum, or a residual, it
  // does not pay.
  static constexpr bool kEarly = kStaged && kCentered && !kMixed;
  static constexpr int kPacks = packs_of(kVariant), kPack = kPackSize<T>;
  static constexpr int kPlaces = kStaged ? 2 : 1, kHalves = kPacks / 2;
  using Partial = Sums<A, kPlaces * kHalves>;  // pack p belongs to half p % 2 of a thread: see RowThread::half()

  // `end`: the column after the last one of this block.
  __device__ NormRow(const NormForward<T>& norm, const RowThread<kThreads>& me, int64_t end, bool is_first_block = true)
      : norm_(norm),
        me_(me),
        is_first_block_(is_first_block),
        columns_((me.row < norm.rows ? static_cast<Index>(end) : 0) - me.template at<T>(0)) {}

  // x or dropout(x), plus the residual, rounded to x's dtype; zeros past the end of the row.
  __device__ void load(Index tile = 0) {
    load_rows(x_, norm_.x, norm_.x_stride, tile);
    if (!norm_.residual) return;
    Pack<T> residual[kPacks];
    load_rows(residual, norm_.residual, norm_.residual_stride, tile);
    add_residual(residual, tile);
  }

  // load() in two parts, for RowCluster::each_row and the staged variant.
  __device__ void prefetch(int64_t row) const {
    prefetch_tensor(0, norm_.x + row * norm_.x_stride);
    if (norm_.residual) prefetch_tensor(1, norm_.residual + row * norm_.residual_stride);
    next_row(0).commit();
  }

  __device__ void wait() {
    next_row(0).wait();
    if (kStaged && !norm_.residual) return;
    each_place([&](Index tile) {
      load_prefetched(x_, 0, tile);
      if (!norm_.residual) return;
      Pack<T> residual[kPacks];
      load_prefetched(residual, 1, tile);
      add_residual(residual, tile);
      if constexpr (kStaged) each(tile, [&](int p, Index, Index) { next_row(0, tile).get(0, p) = x_[p]; });
    });
  }

  __device__ void load_parameters() {
    each(0, [&](int p, Index at, Index count) { load_parameters(p, at, count); });
  }

  // Prefetches into the L2 cache, which takes no register. With few rows, each pack would otherwise wait for memory.
  __device__ void prefetch_parameters() const {
    each(0, [&](int, Index at, Index count) {
      if (count <= 0) return;
      const int64_t column = at + me_.template at<T>(0);
      prefetch_parameter<T>(norm_.weight, column);
      if constexpr (kCentered) prefetch_parameter<T>(norm_.bias, column);
    });
  }

  // Processes a row after load(). of_row(sum) reduces the block's sum to that of the whole row.
  template <class OfRow>
  __device__ void normalize(A (&scratch)[2][32], A inverse_size, OfRow of_row) {
    normalize_tiles(
        inverse_size,
        [this](auto body) {
          each_place([&](Index tile) {
            body(tile, [&] {
              if constexpr (kStaged) load_prefetched(x_, 0, tile);
            });
          });
        },
        [&](const Partial& sums, int which) { return of_row(row_sum(sums, scratch[which])); }, stored());
  }

  // Processes a row that is not held, tile by tile in each pass.
  template <class OfRow>
  __device__ void normalize_long(const RowGroups& groups, A (&scratch)[2][32], A inverse_size, OfRow of_row) {
    normalize_tiles(
        inverse_size,
        [&](auto body) { groups.each_tile(norm_.cols, [&](Index tile) { body(tile, [&] { load(tile); }); }); },
        [&](const Partial& sums, int which) { return of_row(row_sum(sums, scratch[which])); }, stored());
  }

 protected:
  __device__ A row_sum(const Partial& halves, A* scratch) const {
    Sums<A, kPlaces> sums;
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) {
      const A first = halves[place * kHalves];
      sums[place] = kHalves == 1 ? first : first + halves[(place + 1) * kHalves - 1];
    }
    const auto add = [](A a, A b) { return a + b; };
    if constexpr (kStaged)
      return reduce_two_places<kStagedThreads>(sums, scratch, add);
    else
      return row_reduce(me_, sums[0], scratch, add);
  }

  // Calls body(tile) for each thread of the cluster variant whose work this one does.
  template <class Body>
  static __device__ void each_place(Body body) {
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) {
      if (place > 0) asm volatile("" ::: "memory");  // loads of both places at once would take too many registers
      body(Index(place * kStagedThreads * kPack));
    }
  }

  __device__ void add_residual(const Pack<T> (&residual)[kPacks], [[maybe_unused]] Index tile) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      A sums[kPack];
      if constexpr (kDropout) {
        const auto add = norm_.added.template prepared<T>();
        const int64_t position = me_.row * norm_.cols + me_.template at<T>(tile, p);
        const RandomWords<kPack, kAligned> words(add.seed, norm_.added.dropout.place(position));
#pragma unroll
        for (int i = 0; i < kPack; ++i) sums[i] = add(words[i], element(x_[p], i), element(residual[p], i));
      } else {
#pragma unroll
        for (int i = 0; i < kPack; ++i) sums[i] = element(x_[p], i) + element(residual[p], i);
      }
      x_[p] = rounded<T>(sums);
    }
  }

  // Prefetched data of x (0) and of the residual (1): the packs in the order of the row.
  static __device__ NextRow<T, kPacks> next_row(int tensor, Index tile = 0) {
    return NextRow<T, kPacks>(prefetch_memory() + tensor * NextRow<T, kPacks>::kBytes / sizeof(int4) + tile / kPack);
  }

  __device__ void prefetch_tensor(int tensor, const T* row) const {
    row += me_.template at<T>(0);
    each_place([&](Index tile) {
      each(tile, [&](int p, Index at, Index count) { next_row(tensor, tile).prefetch(0, p, row + at, count > 0); });
    });
  }

  __device__ void load_prefetched(Pack<T> (&packs)[kPacks], int tensor, Index tile) const {
    each(tile, [&](int p, Index, Index) { packs[p] = next_row(tensor, tile).get(0, p); });
  }

  __device__ void load_parameters(int p, Index at, Index count) {
    const Index column = at + me_.template at<T>(0);
    weight_[p].load(norm_.weight, column, count, kAbsentWeight);
    if constexpr (kCentered) bias_[p].load(norm_.bias, column, count, kAbsentBias);
  }

  // for_tiles calls a body with the start of each tile and a function that loads it; sum returns the first or the
  // second sum over the row; finish(for_tiles, mean, rstd) stores the results.
  template <class ForTiles, class Sum, class Finish>
  __device__ void normalize_tiles(A inverse_size, ForTiles for_tiles, Sum sum, Finish finish) {
    Partial total, squares;
    for_tiles([&](Index tile, auto load) {
      load();
      if (norm_.residual) store_rows(x_, norm_.s, tile);
      if constexpr (kCentered)
        add(total, tile, [](A x, A sum) { return sum + x; });
      else
        add(squares, tile, [](A x, A sum) { return fused(x, x, sum); });
    });
    A mean = 0;
    if constexpr (kCentered) {
      mean = sum(total, 0) / static_cast<A>(norm_.cols);  // exact for a row of equal numbers

      for_tiles([&](Index tile, auto load) {  // deviations from the mean do not cancel
        load();
        add(squares, tile, [=](A x, A sum) { return fused(x - mean, x - mean, sum); });
      });
    }
    if (is_early()) load_parameters();
    const A variance = product(sum(squares, 1), inverse_size);
    const A rstd = rsqrt(variance + static_cast<A>(norm_.eps));
    finish(for_tiles, mean, rstd);
  }

  // Stores the result in x's dtype, and the statistics.
  __device__ auto stored() {
    return [this](auto for_tiles, A mean, A rstd) {
      for_tiles([&](Index tile, auto load) {
        load();
        store(tile, mean, rstd);
      });
      if (me_.index == 0 && me_.row < norm_.rows && is_first_block_) {
        norm_.rstd[me_.row] = rstd;
        if constexpr (kCentered) norm_.mean[me_.row] = mean;
      }
    };
  }

  // Adds this thread's elements: sum = accumulate(x, sum) for each. An aligned row ends with a whole pack and zeros.
  template <class Accumulate>
  __device__ void add(Partial& sums, Index tile, Accumulate accumulate) {
    const int place = kStaged && tile > 0;
    each(tile, [&](int p, Index, Index count) {
      forget(x_[p]);
      A pack_sum = 0;
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        if (kAligned || i < count) pack_sum = accumulate(element(x_[p], i), pack_sum);
      sums[place * kHalves + p % kHalves] += (kAligned && !kCentered) || count > 0 ? pack_sum : A(0);
    });
  }

  __device__ void store(Index tile, A mean, A rstd) {
    T* row = norm_.y + me_.row * norm_.cols + me_.template at<T>(0);
    const A offset = offset_of_weight();
    each(tile, [&](int p, Index at, Index count) {
      A y[kPack];
      compute(p, at, count, mean, rstd, offset, y);
      store_row_pack<kAligned>(rounded<T>(y), row + at, count);
      if (is_early() && tile == 0) load_parameters(p, at + kStagedThreads * kPack, count - kStagedThreads * kPack);
    });
  }

  __device__ bool is_early() const { return kEarly && !norm_.residual; }

  __device__ A offset_of_weight() const {
    return !kCentered && norm_.weight.data ? static_cast<A>(norm_.offset) : A(0);
  }

  __device__ void compute(int p, Index at, Index count, A mean, A rstd, A offset, A (&y)[kPack]) {
    if (kVariant != RowVariant::few && !is_early()) load_parameters(p, at, count);
    const auto weight = [&](int i) { return kCentered ? weight_[p][i] : weight_[p][i] + offset; };
    normalize_pack(p, mean, rstd, weight, [&](int i) { return bias_[p][i]; }, y);
  }

  template <class Weight, class Bias>
  __device__ void normalize_pack(int p, A mean, A rstd, Weight weight, Bias bias, A (&y)[kPack]) {
    forget(x_[p]);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const A x = element(x_[p], i);
      if constexpr (kCentered)
        y[i] = fused(product(x - mean, rstd), weight(i), bias(i));
      else
        y[i] = product(product(x, rstd), weight(i));
    }
  }

  __device__ void load_rows(Pack<T> (&packs)[kPacks], const T* data, int64_t stride, Index tile) const {
    const T* row = data + me_.row * stride + me_.template at<T>(0);
    each(tile, [&](int p, Index at, Index count) { packs[p] = load_row_pack<kAligned>(row + at, count); });
  }

  __device__ void store_rows(const Pack<T> (&packs)[kPacks], T* data, Index tile) const {
    T* row = data + me_.row * norm_.cols + me_.template at<T>(0);
    each(tile, [&](int p, Index at, Index count) { store_row_pack<kAligned>(packs[p], row + at, count); });
  }

  // Calls body(p, column, columns from there on) for this thread's packs. Columns count from the thread's first one.
  template <class Body>
  __device__ void each(Index tile, Body body) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const Index at = tile + p * (kThreads ? kThreads : me_.threads) * kPack;
      body(p, at, columns_ - at);
    }
  }

  const NormForward<T>& norm_;
  const RowThread<kThreads>& me_;
  const bool is_first_block_;  // of the blocks that share the row
  const Index columns_;        // from the thread's first one on; none past the last row
  Pack<T> x_[kPacks];
  HeldParameter<kAligned, kMixed, T> weight_[kPacks], bias_[kPacks];
};

// Four blocks of 256 threads, or two of 512, fit on a multiprocessor at 64 registers a thread; a block of 1024 threads
// also has 64. Unaligned rows would spill.
template <bool kAligned, RowVariant kVariant>
inline constexpr int kNormRegisters = kAligned || kVariant == RowVariant::few ? 64 : 80;

template <bool kAligned, bool kCentered, bool kDropout, bool kMixed, RowVariant kVariant, int kThreads, class T>
__global__ void __maxnreg__((kNormRegisters<kAligned, kVariant>))
    norm_forward_kernel(const __grid_constant__ NormForward<T> norm, const __grid_constant__ RowGroups groups,
                        compute_t<T> inverse_size) {
  begin_kernel();
  using A = compute_t<T>;
  using Row = NormRow<kAligned, kCentered, kDropout, kMixed, kVariant, kThreads, T>;
  __shared__ A scratch[2][32];
  if constexpr (kVariant == RowVariant::cluster || kVariant == RowVariant::staged) {
    RowCluster cluster(groups);
    const RowThread<kThreads> me = cluster.thread<T>();
    Row row(norm, me, groups.end(norm.cols));
    __shared__ A of_blocks[2][kMaxCluster];
    if constexpr (kVariant == RowVariant::staged) {
      row.prefetch(me.row);
      row.wait();
    } else {
      row.prefetch_parameters();
      row.load();
    }
    row.normalize(scratch, inverse_size, [&](A sum) { return cluster.sum(sum, of_blocks); });
  } else if constexpr (kVariant == RowVariant::tiles) {
    RowCluster cluster(groups);
    const RowThread<kThreads> me(groups, groups.cluster_index());
    __shared__ A of_blocks[2][kMaxCluster];
    Row(norm, me, groups.end(norm.cols), groups.rank() == 0).normalize_long(groups, scratch, inverse_size, [&](A sum) {
      return cluster.sum(sum, of_blocks);
    });
  } else {
    const auto me = kVariant == RowVariant::few ? RowThread<kThreads>::half(groups) : RowThread<kThreads>(groups);
    Row row(norm, me, norm.cols);
    row.load();
    // The variants for many rows lack registers for early parameters.
    if constexpr (kVariant == RowVariant::few) row.load_parameters();
    row.normalize(scratch, inverse_size, [](A sum) { return sum; });
  }
}

// Kernels for many aligned rows of common lengths: the number of threads per row is a compile-time constant.
template <bool kCentered, bool kDropout, bool kMixed, class T>
auto norm_forward_kernel_for(int threads) {
  switch (threads) {
    case 128:
      return norm_forward_kernel<true, kCentered, kDropout, kMixed, RowVariant::many, 128, T>;
    case 256:
      return norm_forward_kernel<true, kCentered, kDropout, kMixed, RowVariant::many, 256, T>;
    case 512:
      return norm_forward_kernel<true, kCentered, kDropout, kMixed, RowVariant::many, 512, T>;
    default:
      return norm_forward_kernel<true, kCentered, kDropout, kMixed, RowVariant::many, 0, T>;
  }
}

template <bool kCentered, bool kDropout, class T>
Status launch_norm_forward(const NormForward<T>& norm, const Context& context) {
  using A = compute_t<T>;
  constexpr bool kCanMix = sizeof(T) == 2;
  const bool aligned = are_rows_aligned(norm.cols, norm.x, norm.x_stride) &&
                       are_rows_aligned(norm.cols, norm.residual, norm.residual_stride) && is_aligned(norm.y) &&
                       is_aligned(norm.s) && is_aligned(norm.weight.data) && is_aligned(norm.bias.data);
  const bool mixed = kCanMix && (norm.weight.is_f32 || norm.bias.is_f32);
  const auto run_on = [&](const Grid& grid, auto kernel, const RowGroups& groups) {
    return launch(context, kernel, grid, norm, groups, A(1) / static_cast<A>(norm.cols));
  };
  const auto run = [&](auto kernel, const RowGroups& groups) { return run_on(groups.grid(norm.rows), kernel, groups); };
  constexpr RowVariant kFew = RowVariant::few, kMany = RowVariant::many, kCluster = RowVariant::cluster,
                       kStaged = RowVariant::staged, kTiles = RowVariant::tiles;
  const auto tiles = aligned ? norm_forward_kernel<true, kCentered, kDropout, true, kTiles, 0, T>
                             : norm_forward_kernel<false, kCentered, kDropout, true, kTiles, 0, T>;
  const RowGroups groups = block_or_cluster<T, packs_of(kMany)>(norm.cols, kRowThreads, tiles);
  const RowVariant variant = variant_of(groups, norm.rows, norm.cols);
  if (variant == kTiles) return run(tiles, groups);
  if (variant == kCluster && aligned && is_multi_wave(groups.blocks(norm.rows))) {
    Grid grid = groups.grid(norm.rows);
    grid.threads = kStagedThreads;
    grid.shared_bytes = NextRow<T, packs_of(kStaged)>::kBytes * (norm.residual ? 2 : 1);
    return run_on(grid,
                  mixed ? norm_forward_kernel<true, kCentered, kDropout, kCanMix, kStaged, kRowThreads, T>
                        : norm_forward_kernel<true, kCentered, kDropout, false, kStaged, kRowThreads, T>,
                  groups);
  }
  if (variant == kCluster)
    return run(!aligned ? norm_forward_kernel<false, kCentered, kDropout, true, kCluster, kRowThreads, T>
               : mixed  ? norm_forward_kernel<true, kCentered, kDropout, kCanMix, kCluster, kRowThreads, T>
                        : norm_forward_kernel<true, kCentered, kDropout, false, kCluster, kRowThreads, T>,
               groups);
  if (!aligned) return run(norm_forward_kernel<false, kCentered, kDropout, true, kMany, 0, T>, groups);
  if (mixed) return run(norm_forward_kernel_for<kCentered, kDropout, kCanMix, T>(groups.threads), groups);
  if (variant == kMany) return run(norm_forward_kernel_for<kCentered, kDropout, false, T>(groups.threads), groups);
  return run(norm_forward_kernel<true, kCentered, kDropout, false, kFew, 0, T>, with_half_the_packs(groups));
}

// kDropout: the call has a seed. Kernels with dropout are compiled in separate files, in parallel.
template <const Signature& kOp, bool kDropout = false>
Status norm_forward(const Call& call) {
  return dispatch(call.inputs[input_of(kOp, "x")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return launch_norm_forward<kIsCentered<kOp>, kDropout>(norm_forward_of<kOp, T>(call), call.context);
  });
}

}  // namespace fusedops::cuda
