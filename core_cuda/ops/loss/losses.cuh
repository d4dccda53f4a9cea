// Shared parts of the CUDA kernels of the losses. Rows of logits are divided into tiles, one per block, so that a
// single row of a large vocabulary occupies many multiprocessors; the sums of each tile go to the workspace. A second
// kernel combines the tiles of each row, and sums the rows of a block; if there are several, a third adds their sums.
#pragma once

#include <limits>

#include "core/cuda/reduce.cuh"
#include "core/cuda/rows.cuh"
#include "ops/loss/cross_entropy.h"

namespace fusedops::cuda {

// Rows divided into tiles of equal size, one per block. Short rows share a block.
struct RowTiles {
  RowGroups groups;
  int64_t per_row;

  int64_t blocks(int64_t rows) const { return per_row == 1 ? groups.blocks(rows) : rows * per_row; }
};

template <class T, int kPacks>
RowTiles row_tiles(int64_t size) {
  const RowGroups groups = row_groups<T, kPacks>(size, kMinBlockThreads, kThreads);
  return {groups, std::max<int64_t>((size + groups.tile - 1) / groups.tile, 1)};
}

// Position of a thread in a tile.
struct TileThread : RowThread<> {
  int64_t tile, start;  // index of the tile in its row, and its first element

  __device__ explicit TileThread(const RowTiles& tiles)
      : RowThread<>(tiles.groups, blockIdx.x / tiles.per_row),
        tile(blockIdx.x % tiles.per_row),
        start(tile * tiles.groups.tile) {}
};

inline constexpr int kSumPacks = 8;  // per thread: few sums in the workspace, and many bytes in flight
static_assert(LossTiles::kTileBytes == kThreads * kSumPacks * sizeof(Pack<float>));

// RowStats of the tiles of each row, with `stride` tiles per row.
template <class A>
struct TileStats {
  RowStats<A>* data;
  int64_t stride;

  __device__ RowStats<A>& at(int64_t row, int64_t tile) const { return data[row * stride + tile]; }
};

// `Logit` for logits in memory; other types compute the logit from the loaded value, in the compute type.
struct PlainLogit {};

// Stores the sums of the tiles of these logits, of which losses.first_class is the first class. Limit: memory
// bandwidth, or the arithmetic of `Logit`.
//
// Four blocks of 256 threads per multiprocessor leave 64 registers to a thread: too few for float64 and for misaligned
// packs.
template <bool kAligned, class T, class Logit>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 8 || !kAligned ? 2 : 4)
    tile_stats_kernel(const LossRows<compute_t<T>> losses, const LogitRows<T> logits, const Logit logit,
                      const RowTiles tiles, const TileStats<compute_t<T>> to) {
  using A = compute_t<T>;
  constexpr int kSize = kPackSize<T>;
  constexpr A kNegInf = -std::numeric_limits<A>::infinity();
  begin_kernel();
  const TileThread me(tiles);
  const auto count = [&](int p) { return me.row < logits.rows ? logits.columns - me.at<T>(me.start, p) : 0; };
  const auto from = [&](int p) { return logits.row(me.row) + me.at<T>(me.start, p); };
  Pack<T> packs[kSumPacks];
  if constexpr (!kAligned && sizeof(T) == 2) {  // issues all loads before the first shift
    UnalignedPack<T> unaligned[kSumPacks];
#pragma unroll
    for (int p = 0; p < kSumPacks; ++p) unaligned[p].begin(from(p), count(p));
#pragma unroll
    for (int p = 0; p < kSumPacks; ++p) packs[p] = unaligned[p].end();
  } else {
#pragma unroll
    for (int p = 0; p < kSumPacks; ++p) packs[p] = load_row_pack<kAligned>(from(p), count(p));
  }
#pragma unroll
  for (int p = 0; p < kSumPacks; ++p) forget(packs[p]);
  if constexpr (!std::is_same_v<Logit, PlainLogit>) {
    static_assert(std::is_same_v<T, A>);
#pragma unroll
    for (int p = 0; p < kSumPacks; ++p)
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        if (i < count(p)) packs[p].values[i] = logit(me.row, me.at<T>(me.start, p) + i, packs[p].values[i]);
  }
  // An aligned row ends with a whole pack.
  const auto each = [&](auto&& body) {
#pragma unroll
    for (int p = 0; p < kSumPacks; ++p) {
      const int64_t n = count(p);
      if (n <= 0) break;
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        if (kAligned || i < n) body(element(packs[p], i), me.at<T>(me.start, p) + i);
      forget(packs[p]);
    }
  };

  // Exponentials are relative to the thread's own maximum; the sum is then rescaled to the maximum of the tile.
  A max = kNegInf, sum = 0;
  each([&](A x, int64_t) { max = fmax(max, x); });
  const A base = max == kNegInf ? A(0) : max;  // -inf minus -inf is NaN, and other tiles may have finite logits
  each([&](A x, int64_t) { sum += exp2_or_zero((x - base) * A(kLog2E)); });

  __shared__ A scratch[4][32];
  const auto add = [](A a, A b) { return a + b; };
  const A largest = row_reduce(me, max, scratch[0], [](A a, A b) { return fmax(a, b); });
  const A common = largest == kNegInf ? A(0) : largest;
  sum = row_reduce(me, sum * exp2_or_zero((max - common) * A(kLog2E)), scratch[1], add);
  // The moment is relative to the maximum of the tile.
  A moment = 0, share = 0;
  if (losses.has_shares()) {
    each([&](A x, int64_t column) {
      const A of_class = losses.share(losses.first_class + column);
      moment = fused(x - common, of_class, moment);
      share += of_class;
    });
    share = row_reduce(me, share, scratch[3], add);
  } else if (losses.smoothing != 0) {
    each([&, of_class = losses.share()](A x, int64_t) { moment = fused(x - common, of_class, moment); });
    share = static_cast<A>(min(int64_t(tiles.groups.tile), logits.columns - me.start)) / static_cast<A>(losses.classes);
  } else if (losses.has_entropy) {
    each([&](A x, int64_t) { moment += LossRows<A>::entropy_term(x - common); });
  }
  if (losses.smoothing != 0 || losses.has_entropy) moment = row_reduce(me, moment, scratch[2], add);
  if (me.index == 0 && me.row < logits.rows) to.at(me.row, me.tile) = {largest, sum, moment, share};
}

template <class T, class Logit>
Status store_tile_stats(const LossRows<compute_t<T>>& losses, const LogitRows<T>& logits, const Logit& logit,
                        const TileStats<compute_t<T>>& to, const Context& context) {
  // The threads of a tile follow from the whole row, so that a block of columns has the same sums.
  RowTiles tiles = row_tiles<T, kSumPacks>(losses.columns);
  tiles.per_row = std::max<int64_t>((logits.columns + tiles.groups.tile - 1) / tiles.groups.tile, 1);
  const bool aligned = are_rows_aligned(logits.columns, logits.data, logits.stride);
  return launch(context, aligned ? tile_stats_kernel<true, T, Logit> : tile_stats_kernel<false, T, Logit>,
                tiles.blocks(logits.rows), tiles.groups.block_threads, losses, logits, logit, tiles, to);
}

// Loss and sum of label weights of a block of rows.
template <class A>
struct Total {
  A loss, count;
};

// Stores the results of all rows.
template <class A>
__device__ void store_totals(const Losses<A>& losses, A loss, A counts) {
  *losses.count = counts;
  if (losses.reduction != Reduction::none) *losses.loss = losses.reduction == Reduction::sum ? loss : loss / counts;
}

// One thread per row. label_logit(row, label) is the logit of its label. `totals`: of the blocks; null if one has all
// rows.
template <class A, class LabelLogit>
__global__ void __launch_bounds__(kThreads) row_losses_kernel(const Losses<A> losses, const TileStats<A> tile_stats,
                                                              const LabelLogit label_logit, Total<A>* totals) {
  begin_kernel();
  const int64_t row = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  A loss = 0, counts = 0;
  if (row < losses.rows) {
    loss = losses.finish(row, losses.combined(&tile_stats.at(row, 0), tile_stats.stride), label_logit);
    counts = losses.counted(losses.labels[row]);
    if (losses.reduction == Reduction::none) losses.loss[row] = loss;
  }
  loss = block_sum<kThreads>(loss);
  __syncthreads();
  counts = block_sum<kThreads>(counts);
  if (threadIdx.x != 0) return;
  if (totals)
    totals[blockIdx.x] = {loss, counts};
  else
    store_totals(losses, loss, counts);
}

template <class A>
__global__ void __launch_bounds__(kSumThreads)
    loss_totals_kernel(const Losses<A> losses, const Total<A>* totals, int64_t blocks) {
  begin_kernel();
  A loss = 0, counts = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += kSumThreads) {
    loss += totals[i].loss;
    counts += totals[i].count;
  }
  loss = block_sum<kSumThreads>(loss);
  __syncthreads();
  counts = block_sum<kSumThreads>(counts);
  if (threadIdx.x == 0) store_totals(losses, loss, counts);
}

// Stores lse, count and the losses. `totals`: memory for LossTiles::blocks of them.
template <class A, class LabelLogit>
Status finish_losses(const Losses<A>& losses, const TileStats<A>& tile_stats, const LabelLogit& label_logit,
                     Total<A>* totals, const Context& context) {
  static_assert(LossTiles::kBlockRows == kThreads);
  const int64_t blocks = (losses.rows + kThreads - 1) / kThreads;
  if (blocks == 1) totals = nullptr;
  FUSEDOPS_TRY(
      launch(context, row_losses_kernel<A, LabelLogit>, blocks, kThreads, losses, tile_stats, label_logit, totals));
  if (!totals) return {};
  return launch(context, loss_totals_kernel<A>, 1, kSumThreads, losses, totals, blocks);
}

}  // namespace fusedops::cuda
