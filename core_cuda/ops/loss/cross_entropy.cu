// The backward of cross_entropy; losses.cuh has the forward. Each block takes a tile of one row. Limit: memory
// bandwidth: logits are read, gradients written.
#include "ops/loss/cross_entropy.h"
#include "ops/loss/losses.cuh"

namespace fusedops {
namespace cuda {
namespace {

template <class T>
struct LabelInRow {
  LogitRows<T> logits;
  int64_t first_class;

  __device__ compute_t<T> operator()(int64_t row, int64_t label) const {
    return to_compute(logits.row(row)[label - first_class]);
  }
};

template <class T>
Status forward(const Call& call) {
  using A = compute_t<T>;
  const auto logits = logits_of<T>(*call.inputs[input_of(kCrossEntropy, "logits")]);
  const Losses<A> losses(call, kCrossEntropy, logits.rows, logits.columns);
  auto* const tile_stats = static_cast<RowStats<A>*>(call.workspace);
  const TileStats<A> sums = {tile_stats, row_tiles<T, kSumPacks>(logits.columns).per_row};
  FUSEDOPS_TRY(store_tile_stats<T>(losses, logits, PlainLogit(), sums, call.context));
  auto* const totals = reinterpret_cast<Total<A>*>(tile_stats + logits.rows * sums.stride);
  return finish_losses(losses, sums, LabelInRow<T>{logits, losses.first_class}, totals, call.context);
}

constexpr int kBackwardPacks = 4;  // per thread

// If a row of results does not begin at a multiple of 16 bytes, its first pack begins before it. All packs but the
// first and the last are then stored in one access, and loaded in one if logits have the same alignment.
template <bool kAligned, class T>
struct RowOfLogits {
  const T* logits;
  T* dlogits;
  int64_t columns;

  __device__ int64_t first() const {
    return kAligned ? 0 : -int64_t(reinterpret_cast<uintptr_t>(dlogits) % 16 / sizeof(T));
  }

  // Packs at at(p).
  template <int kPacks, class At>
  __device__ void load(Pack<T> (&packs)[kPacks], At at) const {
    if constexpr (kAligned) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) packs[p] = load_row_pack<true>(logits + at(p), columns - at(p));
    } else {
      UnalignedPack<T> unaligned[kPacks];
#pragma unroll
      for (int p = 0; p < kPacks; ++p) unaligned[p].begin(logits + at(p), at(p) < 0 ? 0 : columns - at(p));
#pragma unroll
      for (int p = 0; p < kPacks; ++p) packs[p] = at(p) < 0 ? first_pack(at(p)) : unaligned[p].end();
    }
  }

  __device__ void store(const Pack<T>& pack, int64_t at) const {
    if constexpr (kAligned) return store_row_pack<true>(pack, dlogits + at, columns - at);
    if (at >= 0) return store_pack<true>(pack, dlogits + at, columns - at);
#pragma unroll
    for (int i = 0; i < kPackSize<T>; ++i)
      if (is_in_row(at + i)) dlogits[at + i] = pack.values[i];
  }

  __device__ bool is_in_row(int64_t at) const { return at >= 0 && at < columns; }

 private:
  __device__ Pack<T> first_pack(int64_t at) const {
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < kPackSize<T>; ++i) pack.values[i] = is_in_row(at + i) ? logits[at + i] : T{};
    return pack;
  }
};

template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads, kAligned ? 4 : 3)
    cross_entropy_backward_kernel(const LossGradient<compute_t<T>> gradient, const LogitRows<T> logits, T* dlogits,
                                  const int64_t dlogits_stride, const RowTiles tiles) {
  using A = compute_t<T>;
  constexpr int kSize = kPackSize<T>;
  begin_kernel();
  const TileThread me(tiles);
  if (me.row >= logits.rows) return;
  const RowOfLogits<kAligned, T> row = {logits.row(me.row), dlogits + me.row * dlogits_stride, logits.columns};
  const int64_t start = me.start + row.first();
  Pack<T> packs[kBackwardPacks];
  row.load(packs, [&](int p) { return me.at<T>(start, p); });
  const int64_t label = gradient.labels[me.row];  // after the loads of logits, which must not wait for it
  const int64_t own = gradient.column_of(label);
  const bool ignored = gradient.is_ignored(label);
  const auto derivative = gradient.derivative(me.row);
#pragma unroll
  for (int p = 0; p < kBackwardPacks; ++p) {
    const int64_t at = me.at<T>(start, p);
    if (at >= logits.columns) return;
    A dx[kSize] = {};
    if (!ignored) {  // uniform over the threads of the row
      if (gradient.has_shares()) {
#pragma unroll
        for (int i = 0; i < kSize; ++i)
          if (row.is_in_row(at + i))
            dx[i] = derivative(element(packs[p], i), gradient.target(gradient.first_class + at + i));
      } else {
#pragma unroll
        for (int i = 0; i < kSize; ++i) dx[i] = derivative(element(packs[p], i), gradient.uniform);
      }
    }
    if (own >= at && own < at + kSize && !ignored) {
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        if (at + i == own) dx[i] = derivative(element(packs[p], i), gradient.target_of_label(me.row, label));
    }
    row.store(rounded<T>(dx), at);
  }
}

template <class T>
Status backward(const Call& call) {
  const auto logits = logits_of<T>(*call.inputs[input_of(kCrossEntropyBackward, "logits")]);
  const LossGradient<compute_t<T>> gradient(call, kCrossEntropyBackward, logits.rows, logits.columns);
  const View& output = call.outputs[output_of(kCrossEntropyBackward, "dlogits")];
  T* const dlogits = static_cast<T*>(output.data);
  const bool aligned = are_rows_aligned(logits.columns, logits.data, logits.stride) && is_aligned(dlogits);
  const RowTiles tiles = row_tiles<T, kBackwardPacks>(logits.columns + (aligned ? 0 : kPackSize<T> - 1));
  return launch(
      call.context, aligned ? cross_entropy_backward_kernel<true, T> : cross_entropy_backward_kernel<false, T>,
      tiles.blocks(logits.rows), tiles.groups.block_threads, gradient, logits, dlogits, as_rows(output).stride, tiles);
}

}  // namespace
}  // namespace cuda

Status cross_entropy_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kCrossEntropy, "logits")]->dtype,
                  [&](auto tag) { return cuda::forward<typename decltype(tag)::type>(call); });
}

Status cross_entropy_backward_cuda(const Call& call) {
  return dispatch(call.outputs[output_of(kCrossEntropyBackward, "dlogits")].dtype,
                  [&](auto tag) { return cuda::backward<typename decltype(tag)::type>(call); });
}

}  // namespace fusedops
