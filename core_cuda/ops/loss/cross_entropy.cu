// Forward. Limit: memory bandwidth. A row is cut into segments, each of which one block reads once, so that a single
// row of a large vocabulary occupies many multiprocessors; its sums go to the workspace. A second kernel joins the
// segments of each row, a third adds the rows, both in a fixed order.
//
// Backward. Limit: memory bandwidth. Each block takes a tile of one row: logits are read, their gradients written.
#include <limits>

#include "core/cuda/reduce.cuh"
#include "core/cuda/rows.cuh"
#include "ops/loss/cross_entropy.h"

namespace fusedops {
namespace cuda {
namespace {

// Rows cut into pieces of the same size, one block for each. Short rows share a block.
struct Pieces {
  RowGroups groups;
  int64_t per_row;

  int64_t blocks(int64_t rows) const { return per_row == 1 ? groups.blocks(rows) : rows * per_row; }
};

template <class T, int kPacks>
Pieces pieces(int64_t size) {
  const RowGroups groups = row_groups<T, kPacks>(size, kLeastBlockThreads, kThreads);
  return {groups, std::max<int64_t>((size + groups.chunk - 1) / groups.chunk, 1)};
}

// A thread's place in a piece.
struct PieceThread : RowThread<> {
  int64_t piece, start;  // which of the row's, and its first element

  __device__ explicit PieceThread(const Pieces& pieces)
      : RowThread<>(pieces.groups, blockIdx.x / pieces.per_row),
        piece(blockIdx.x % pieces.per_row),
        start(piece * pieces.groups.chunk) {}
};

constexpr int kForwardPacks = 8;  // per thread: few sums in the workspace, and many bytes in flight
static_assert(CrossEntropyParts::kSegmentBytes == kThreads * kForwardPacks * sizeof(Pack<float>));

// Four blocks of 256 threads on a multiprocessor leave 64 registers to a thread: too few for float64, and for elements
// that are loaded one by one.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 8 || !kAligned ? 2 : 4)
    cross_entropy_segments_kernel(CrossEntropy<T> call, Pieces segments, RowSums<compute_t<T>>* parts) {
  using A = compute_t<T>;
  constexpr int kSize = kPackSize<T>;
  constexpr A kNothing = -std::numeric_limits<A>::infinity();
  begin_kernel();
  const PieceThread me(segments);
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

  // Relative to this thread's own maximum; the segment's then is a factor for each thread.
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
  if (call.smoothing != 0) {  // relative to the segment's maximum at once
    each([&, share = A(1) / static_cast<A>(call.classes)](A x) { mean = fused(x - common, share, mean); });
    mean = row_reduce(me, mean, scratch[2], add);
  }
  if (me.lane == 0 && me.row < call.rows) parts[me.row * segments.per_row + me.piece] = {largest, sum, mean};
}

// Of a row whose segments are `size` classes each, but for the last.
template <class T, class A>
__device__ RowSums<A> joined(const CrossEntropy<T>& call, const RowSums<A>* parts, int64_t count, int64_t size) {
  RowSums<A> row = {parts[0].max, 0, 0};
  for (int64_t i = 1; i < count; ++i) row.max = fmax(row.max, parts[i].max);
  for (int64_t i = 0; i < count; ++i) {
    const A below = parts[i].max == row.max ? A(0) : parts[i].max - row.max;  // infinities may be equal, too
    row.exponentials += parts[i].exponentials * exp2_or_zero(below * A(kLog2E));
    if (call.smoothing == 0) continue;
    const A share = static_cast<A>(min(size, call.classes - i * size)) / static_cast<A>(call.classes);
    row.mean += parts[i].mean + below * share;
  }
  return row;
}

// What is added up over the rows.
template <class A>
struct Total {
  A loss, count;
};

// One thread for each row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_rows_kernel(CrossEntropy<T> call, const RowSums<compute_t<T>>* parts, int64_t segments,
                              int64_t segment_size, Total<compute_t<T>>* totals) {
  using A = compute_t<T>;
  begin_kernel();
  const int64_t row = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  A loss = 0, counts = 0;
  if (row < call.rows) {
    const RowSums<A> sums = joined(call, parts + row * segments, segments, segment_size);
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
  const Pieces segments = pieces<T, kForwardPacks>(call.classes);
  const int64_t blocks = (call.rows + CrossEntropyParts::kBlockRows - 1) / CrossEntropyParts::kBlockRows;
  static_assert(CrossEntropyParts::kBlockRows == kThreads);
  auto* parts = static_cast<RowSums<A>*>(call.workspace);
  auto* totals = reinterpret_cast<Total<A>*>(parts + call.rows * segments.per_row);
  const bool aligned = are_rows_aligned(call.classes, call.logits, call.stride);
  FUSEDOPS_TRY(launch(context,
                      aligned ? cross_entropy_segments_kernel<true, T> : cross_entropy_segments_kernel<false, T>,
                      segments.blocks(call.rows), segments.groups.block_threads, call, segments, parts));
  FUSEDOPS_TRY(launch(context, cross_entropy_rows_kernel<T>, blocks, kThreads, call, parts, segments.per_row,
                      int64_t(segments.groups.chunk), totals));
  return launch(context, cross_entropy_totals_kernel<T>, 1, kSumThreads, call, totals, blocks);
}

constexpr int kBackwardPacks = 4;  // per thread

template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads, kAligned ? 4 : 3)
    cross_entropy_backward_kernel(CrossEntropyBackward<T> call, Pieces tiles) {
  using A = compute_t<T>;
  constexpr int kSize = kPackSize<T>;
  begin_kernel();
  const PieceThread me(tiles);
  if (me.row >= call.rows) return;
  const T* logits = call.logits + me.row * call.stride;
  Pack<T> packs[kBackwardPacks];
#pragma unroll
  for (int p = 0; p < kBackwardPacks; ++p) {
    const int64_t at = me.at<T>(me.start, p);
    packs[p] = load_row_pack<kAligned>(logits + at, call.classes - at);
  }
  const int64_t label = call.labels[me.row];  // behind the logits: these must not wait for it
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
  const Pieces tiles = pieces<T, kBackwardPacks>(call.classes);
  const bool aligned = are_rows_aligned(call.classes, call.logits, call.stride) && is_aligned(call.dlogits);
  return launch(context, aligned ? cross_entropy_backward_kernel<true, T> : cross_entropy_backward_kernel<false, T>,
                tiles.blocks(call.rows), tiles.groups.block_threads, call, tiles);
}

}  // namespace
}  // namespace cuda

Status cross_entropy_cuda(const Call& call) {
  return dispatch(call.inputs[CrossEntropy<float>::kLogits]->dtype, [&](auto tag) {
    return cuda::forward(CrossEntropy<typename decltype(tag)::type>(call), call.context);
  });
}

Status cross_entropy_backward_cuda(const Call& call) {
  return dispatch(call.outputs[0].dtype, [&](auto tag) {
    return cuda::backward(CrossEntropyBackward<typename decltype(tag)::type>(call), call.context);
  });
}

}  // namespace fusedops
