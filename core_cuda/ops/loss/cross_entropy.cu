// Forward. Limit: memory bandwidth. A row is cut into tiles, each of which one block reads once, so that a single
// row of a large vocabulary occupies many multiprocessors; its sums go to the workspace. A second kernel joins the
// tiles of each row, a third adds the rows, both in a fixed order.
//
// Backward. Limit: memory bandwidth. Each block takes a tile of one row: logits are read, their gradients written.
#include <limits>

#include "core/cuda/reduce.cuh"
#include "core/cuda/rows.cuh"
#include "ops/loss/cross_entropy.h"

namespace fusedops {
namespace cuda {
namespace {

// Rows cut into tiles of the same size, one block for each. Short rows share a block.
struct RowTiles {
  RowGroups groups;
  int64_t per_row;

  int64_t blocks(int64_t rows) const { return per_row == 1 ? groups.blocks(rows) : rows * per_row; }
};

template <class T, int kPacks>
RowTiles row_tiles(int64_t size) {
  const RowGroups groups = row_groups<T, kPacks>(size, kLeastBlockThreads, kThreads);
  return {groups, std::max<int64_t>((size + groups.tile - 1) / groups.tile, 1)};
}

// A thread's place in a tile.
struct TileThread : RowThread<> {
  int64_t tile, start;  // the tile's index in its row, and its first element

  __device__ explicit TileThread(const RowTiles& tiles)
      : RowThread<>(tiles.groups, blockIdx.x / tiles.per_row),
        tile(blockIdx.x % tiles.per_row),
        start(tile * tiles.groups.tile) {}
};

constexpr int kForwardPacks = 8;  // per thread: few sums in the workspace, and many bytes in flight
static_assert(CrossEntropyTiles::kTileBytes == kThreads * kForwardPacks * sizeof(Pack<float>));

// Four blocks of 256 threads on a multiprocessor leave 64 registers to a thread: too few for float64, and for elements
// that are loaded one by one.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 8 || !kAligned ? 2 : 4)
    cross_entropy_tiles_kernel(CrossEntropy<T> call, RowTiles tiles, RowSums<compute_t<T>>* tile_sums) {
  using A = compute_t<T>;
  constexpr int kSize = kPackSize<T>;
  constexpr A kNothing = -std::numeric_limits<A>::infinity();
  begin_kernel();
  const TileThread me(tiles);
  const auto count = [&](int p) { return me.row < call.rows ? call.classes - me.at<T>(me.start, p) : 0; };
  Pack<T> packs[kForwardPacks];
#pragma unroll
  for (int p = 0; p < kForwardPacks; ++p)
    packs[p] = load_row_pack<kAligned>(call.logits + me.row * call.stride + me.at<T>(me.start, p), count(p));
#pragma unroll
  for (int p = 0; p < kForwardPacks; ++p) forget(packs[p]);
  // An aligned row ends with a whole pack.
  const auto each = [&](auto&& body) {
#pragma unroll
    for (int p = 0; p < kForwardPacks; ++p) {
      const int64_t n = count(p);
      if (n <= 0) break;
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        if (kAligned || i < n) body(element(packs[p], i));
      forget(packs[p]);
    }
  };

  // Exponentials are relative to the thread's own maximum; each thread then scales its sum to the maximum of the tile.
  A max = kNothing, sum = 0;
  each([&](A x) { max = fmax(max, x); });
  const A base = max == kNothing ? A(0) : max;  // -inf minus -inf would be NaN before the whole row is known
  each([&](A x) { sum += exp2_or_zero((x - base) * A(kLog2E)); });

  __shared__ A scratch[3][32];
  const auto add = [](A a, A b) { return a + b; };
  const A largest = row_reduce(me, max, scratch[0], [](A a, A b) { return fmax(a, b); });
  const A common = largest == kNothing ? A(0) : largest;
  sum = row_reduce(me, sum * exp2_or_zero((max - common) * A(kLog2E)), scratch[1], add);
  A mean = 0;
  if (call.smoothing != 0) {  // relative to the maximum of the tile
    each([&, share = A(1) / static_cast<A>(call.classes)](A x) { mean = fused(x - common, share, mean); });
    mean = row_reduce(me, mean, scratch[2], add);
  }
  if (me.index == 0 && me.row < call.rows) tile_sums[me.row * tiles.per_row + me.tile] = {largest, sum, mean};
}

// The sums of a row from those of its tiles, which have `size` classes each, but for the last.
template <class T, class A>
__device__ RowSums<A> joined(const CrossEntropy<T>& call, const RowSums<A>* tile_sums, int64_t count, int64_t size) {
  RowSums<A> row = {tile_sums[0].max, 0, 0};
  for (int64_t i = 1; i < count; ++i) row.max = fmax(row.max, tile_sums[i].max);
  for (int64_t i = 0; i < count; ++i) {
    const A below = tile_sums[i].max == row.max ? A(0) : tile_sums[i].max - row.max;  // infinities may be equal, too
    row.exponentials += tile_sums[i].exponentials * exp2_or_zero(below * A(kLog2E));
    if (call.smoothing == 0) continue;
    const A share = static_cast<A>(min(size, call.classes - i * size)) / static_cast<A>(call.classes);
    row.mean += tile_sums[i].mean + below * share;
  }
  return row;
}

// The sums over the rows.
template <class A>
struct Total {
  A loss, count;
};

// One thread for each row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_rows_kernel(CrossEntropy<T> call, const RowSums<compute_t<T>>* tile_sums, int64_t tiles,
                              int64_t tile_size, Total<compute_t<T>>* totals) {
  using A = compute_t<T>;
  begin_kernel();
  const int64_t row = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  A loss = 0, counts = 0;
  if (row < call.rows) {
    const RowSums<A> sums = joined(call, tile_sums + row * tiles, tiles, tile_size);
    const Lse<A> lse = call.lse[row] = call.row_lse(sums);
    const int64_t label = call.labels[row];
    if (!call.is_ignored(label)) {
      counts = 1;
      loss = call.is_class(label) ? call.row_loss(sums, lse, to_compute(call.logits[row * call.stride + label]))
                                  : std::numeric_limits<A>::quiet_NaN();
    }
    if (call.reduction == Reduction::none) call.loss[row] = loss;
  }
  loss = block_sum<kThreads>(loss);
  __syncthreads();
  counts = block_sum<kThreads>(counts);
  if (threadIdx.x == 0) totals[blockIdx.x] = {loss, counts};
}

template <class T>
__global__ void __launch_bounds__(kSumThreads)
    cross_entropy_totals_kernel(CrossEntropy<T> call, const Total<compute_t<T>>* totals, int64_t blocks) {
  using A = compute_t<T>;
  begin_kernel();
  A loss = 0, counts = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += kSumThreads) {
    loss += totals[i].loss;
    counts += totals[i].count;
  }
  loss = block_sum<kSumThreads>(loss);
  __syncthreads();
  counts = block_sum<kSumThreads>(counts);
  if (threadIdx.x != 0) return;
  *call.count = counts;
  if (call.reduction != Reduction::none) *call.loss = call.reduction == Reduction::sum ? loss : loss / counts;
}

template <class T>
Status forward(const CrossEntropy<T>& call, const Context& context) {
  using A = compute_t<T>;
  const RowTiles tiles = row_tiles<T, kForwardPacks>(call.classes);
  const int64_t blocks = (call.rows + CrossEntropyTiles::kBlockRows - 1) / CrossEntropyTiles::kBlockRows;
  static_assert(CrossEntropyTiles::kBlockRows == kThreads);
  auto* tile_sums = static_cast<RowSums<A>*>(call.workspace);
  auto* totals = reinterpret_cast<Total<A>*>(tile_sums + call.rows * tiles.per_row);
  const bool aligned = are_rows_aligned(call.classes, call.logits, call.stride);
  FUSEDOPS_TRY(launch(context, aligned ? cross_entropy_tiles_kernel<true, T> : cross_entropy_tiles_kernel<false, T>,
                      tiles.blocks(call.rows), tiles.groups.block_threads, call, tiles, tile_sums));
  FUSEDOPS_TRY(launch(context, cross_entropy_rows_kernel<T>, blocks, kThreads, call, tile_sums, tiles.per_row,
                      int64_t(tiles.groups.tile), totals));
  return launch(context, cross_entropy_totals_kernel<T>, 1, kSumThreads, call, totals, blocks);
}

constexpr int kBackwardPacks = 4;  // per thread

template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads, kAligned ? 4 : 3)
    cross_entropy_backward_kernel(CrossEntropyBackward<T> call, RowTiles tiles) {
  using A = compute_t<T>;
  constexpr int kSize = kPackSize<T>;
  begin_kernel();
  const TileThread me(tiles);
  if (me.row >= call.rows) return;
  const T* logits = call.logits + me.row * call.stride;
  Pack<T> packs[kBackwardPacks];
#pragma unroll
  for (int p = 0; p < kBackwardPacks; ++p) {
    const int64_t at = me.at<T>(me.start, p);
    packs[p] = load_row_pack<kAligned>(logits + at, call.classes - at);
  }
  const int64_t label = call.labels[me.row];  // after the logits, which must not wait for it
  const bool ignored = call.is_ignored(label);
  const A slope = call.is_class(label) ? call.slope(me.row) : std::numeric_limits<A>::quiet_NaN();
  const auto derivative = call.derivative(me.row, slope);
#pragma unroll
  for (int p = 0; p < kBackwardPacks; ++p) {
    const int64_t at = me.at<T>(me.start, p);
    if (at >= call.classes) return;
    A dx[kSize] = {};
    if (!ignored) {  // all threads of the row agree
#pragma unroll
      for (int i = 0; i < kSize; ++i) dx[i] = derivative(element(packs[p], i));
    }
    if (label >= at && label < at + kSize && !ignored) {
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        if (at + i == label) dx[i] = call.derivative_of_label(me.row, slope)(element(packs[p], i));
    }
    store_row_pack<kAligned>(rounded<T>(dx), call.dlogits + me.row * call.classes + at, call.classes - at);
  }
}

template <class T>
Status backward(const CrossEntropyBackward<T>& call, const Context& context) {
  const RowTiles tiles = row_tiles<T, kBackwardPacks>(call.classes);
  const bool aligned = are_rows_aligned(call.classes, call.logits, call.stride) && is_aligned(call.dlogits);
  return launch(context, aligned ? cross_entropy_backward_kernel<true, T> : cross_entropy_backward_kernel<false, T>,
                tiles.blocks(call.rows), tiles.groups.block_threads, call, tiles);
}

}  // namespace
}  // namespace cuda

Status cross_entropy_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kCrossEntropy, "logits")]->dtype, [&](auto tag) {
    return cuda::forward(CrossEntropy<typename decltype(tag)::type>(call), call.context);
  });
}

Status cross_entropy_backward_cuda(const Call& call) {
  return dispatch(call.outputs[output_of(kCrossEntropyBackward, "dlogits")].dtype, [&](auto tag) {
    return cuda::backward(CrossEntropyBackward<typename decltype(tag)::type>(call), call.context);
  });
}

}  // namespace fusedops
