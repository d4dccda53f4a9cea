// Limit: memory bandwidth. Every element is read once, held in registers while its row is reduced, and written once; a
// row that neither a block nor a cluster holds is read twice, the second time mostly from the L2 cache.
#include <limits>

#include "core/cuda/rounding.cuh"
#include "core/cuda/row_ways.cuh"
#include "ops/attention/softmax.h"

namespace fusedops {
namespace cuda {
namespace {

struct NoMask {};

// Bit i: whether element i of `count` is kept.
template <int kSize>
__device__ uint32_t kept_bits(const uint8_t* mask, int64_t count) {
  uint32_t bits = 0;
  if (count >= kSize && reinterpret_cast<uintptr_t>(mask) % kSize == 0) {
    if constexpr (kSize == 2) {
      const uint16_t bytes = *reinterpret_cast<const uint16_t*>(mask);
      bits = uint32_t((bytes & 0xff) != 0) | uint32_t(bytes > 0xff) << 1;
    } else {
#pragma unroll
      for (int word = 0; word < kSize / 4; ++word) {
        const uint32_t bytes = reinterpret_cast<const uint32_t*>(mask)[word];
        bits |= (__vsetne4(bytes, 0) * 0x01020408u >> 24) << 4 * word;  // the product moves 4 bytes to 4 bits
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kSize; ++i)
      if (i < count && mask[i]) bits |= 1u << i;
  }
  return bits;
}

template <class A>
constexpr A kNothing = -std::numeric_limits<A>::infinity();

// What exponentials are relative to: -inf minus -inf would be NaN before the whole row is known.
template <class A>
__device__ A base_of(A max) {
  return max == kNothing<A> ? A(0) : max;
}

// What exponentials relative to `max` must be multiplied by, to be relative to a larger maximum.
template <class A>
__device__ A share_of(A max, A larger, A factor) {
  return exp2_((max - base_of(larger)) * factor);
}

// Of a part of a row: the maximum, and the sum of the exponentials relative to it.
template <class A>
struct MaxSum {
  A max, sum;
};

// Of `count` parts, a power of two; each lane of a warp begins with one.
template <class A>
__device__ MaxSum<A> joined(const MaxSum<A>* parts, int count, A factor) {
  const MaxSum<A> mine = parts[threadIdx.x & (count - 1)];
  MaxSum<A> all = mine;
  for (int offset = 1; offset < count; offset *= 2) all.max = fmax(all.max, exchanged(all.max, offset));
  all.sum = product(mine.sum, share_of(mine.max, all.max, factor));
  for (int offset = 1; offset < count; offset *= 2) all.sum += exchanged(all.sum, offset);
  return all;
}

// This thread's part of a row, or of a chunk of it. What is masked, or behind the end, is held as -inf.
//
// Each thread takes its exponentials relative to the largest value that it has seen itself; the row's maximum then is a
// factor for each. Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
//
// The two halves of a thread have a sum each, but one maximum. Of few rows, they are two threads side by side, which
// agree on it: the bits are the same.
template <RowWay kWay, bool kAligned, int kThreads, class T, class Mask>
class SoftmaxRow {
 public:
  using A = compute_t<T>;

  // `end`: the column behind the last one of this block.
  __device__ SoftmaxRow(const Softmax<T>& call, const Mask& masks, const RowThread<kThreads>& me, int64_t end)
      : call_(call), masks_(masks), me_(me), end_(end) {
    find_row();
  }

  __device__ void load(int64_t chunk = 0) {
    const T* x = call_.x + me_.row * call_.x_stride;
    take(chunk, [&](int, int64_t at, int64_t count) { return load_row_pack<kAligned>(x + at, count); });
  }

  // The same in two steps, the first of them early: for RowCluster::each_row.
  __device__ void order(int64_t row) const {
    const T* x = call_.x + row * call_.x_stride;
    const int64_t end = min(end_, call_.end(row));
#pragma unroll
    for (int p = 0; p < kPacks; ++p) ordered().order(0, p, x + me_.template at<T>(p), me_.template at<T>(p) < end);
    ordered().commit();
  }

  __device__ void take_ordered() {
    find_row();
    ordered().wait();
    take(0, [&](int p, int64_t, int64_t) { return ordered().get(0, p); });
  }

  // What remains once the row is there. of_row joins what the blocks that share the row have found.
  template <class OfRow>
  __device__ void finish(A (&scratch)[2][32], OfRow of_row) {
    Seen seen;
    see(seen);
    const MaxSum<A> row = of_row(of_block(seen, scratch));
    store(0, share_of(seen.max, row.max, call_.factor) / row.sum);
  }

  // Of a row that is not held.
  template <class OfRow>
  __device__ void finish_long(const RowGroups& groups, A (&scratch)[2][32], OfRow of_row) {
    Seen seen;
    groups.each_chunk(call_.cols, [&](int64_t chunk) {
      load(chunk);
      see(seen);
    });
    const MaxSum<A> row = of_row(of_block(seen, scratch));
    groups.each_chunk(call_.cols, [&](int64_t chunk) {
      load(chunk);
      exponentials(row.max);
      store(chunk, A(1) / row.sum);
    });
  }

 private:
  static constexpr int kPacks = packs_of(kWay), kSize = kPackSize<T>, kHalves = kPacks / 2;
  static constexpr uint32_t kAll = (1u << kSize) - 1;

  static __device__ NextRow<T, kPacks> ordered() {
    extern __shared__ int4 next_row[];
    return NextRow<T, kPacks>(next_row);
  }

  __device__ void find_row() {
    unmasked_ = 0, mask_ = nullptr;
    if (me_.row >= call_.rows) return;
    unmasked_ = min(end_, call_.end(me_.row));
    if constexpr (std::is_same_v<Mask, BroadcastMask>) {
      mask_ = masks_.row(me_.row);
      if (masks_.has_columns()) return;
      if (!*mask_) unmasked_ = 0;  // one bool for the row
      mask_ = nullptr;
    }
  }

  template <class GetPack>
  __device__ void take(int64_t chunk, GetPack get_pack) {
    Pack<T> packs[kPacks];
    kept_ = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t at = me_.template at<T>(chunk, p), count = unmasked_ - at;
      packs[p] = get_pack(p, at, count);
      uint32_t bits = count >= kSize ? kAll : count > 0 ? (1u << count) - 1 : 0;
      if constexpr (std::is_same_v<Mask, BroadcastMask>)
        if (mask_ && count > 0) bits &= kept_bits<kSize>(mask_ + at, count);
      kept_ |= bits << p * kSize;
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) values_[p][i] = call_.sign * element(packs[p], i);
      if (are_all_kept(p)) continue;
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        if (!is_kept(p, i)) values_[p][i] = kNothing<A>;
    }
  }

  // What this thread has seen of the row.
  struct Seen {
    A max = kNothing<A>, sums[kHalves] = {};
  };

  // Makes exponentials of the values, and adds them.
  __device__ void see(Seen& seen) {
    const A before = seen.max;
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kSize; ++i) seen.max = fmax(seen.max, values_[p][i]);
    if constexpr (kWay == RowWay::few) seen.max = fmax(seen.max, exchanged(seen.max, 1));
    if constexpr (kWay == RowWay::chunks) {
      const A share = share_of(before, seen.max, call_.factor);
#pragma unroll
      for (A& sum : seen.sums) sum = product(sum, share);
    }
    exponentials(base_of(seen.max));
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kSize; ++i) seen.sums[p % kHalves] += values_[p][i];
  }

  __device__ void exponentials(A base) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kSize; ++i) values_[p][i] = exp2_((values_[p][i] - base) * call_.factor);
  }

  // Over the threads of the row in this block.
  __device__ MaxSum<A> of_block(const Seen& seen, A (&scratch)[2][32]) const {
    const A max = row_reduce(me_, seen.max, scratch[0], [](A a, A b) { return fmax(a, b); });
    const A share = share_of(seen.max, max, call_.factor);
    A sum = product(seen.sums[0], share);
    if constexpr (kHalves == 2) sum += product(seen.sums[1], share);
    return {max, row_reduce(me_, sum, scratch[1], [](A a, A b) { return a + b; })};
  }

  __device__ void store(int64_t chunk, A factor) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t at = me_.template at<T>(chunk, p), count = me_.row < call_.rows ? end_ - at : 0;
      if (count <= 0) return;
      A shares[kSize];
#pragma unroll
      for (int i = 0; i < kSize; ++i) shares[i] = values_[p][i] * factor;
      if (!are_all_kept(p)) {  // zero, even in a row of NaN
#pragma unroll
        for (int i = 0; i < kSize; ++i)
          if (!is_kept(p, i)) shares[i] = 0;
      }
      store_row_pack<kAligned>(rounded<T>(shares), call_.y + me_.row * call_.cols + at, count);
    }
  }

  __device__ bool is_kept(int p, int i) const { return kept_ >> (p * kSize + i) & 1; }
  __device__ bool are_all_kept(int p) const { return (kept_ >> p * kSize & kAll) == kAll; }

  const Softmax<T>& call_;
  const Mask& masks_;
  const RowThread<kThreads>& me_;
  const int64_t end_;
  int64_t unmasked_;     // columns from here on are masked, and not read
  const uint8_t* mask_;  // null: nothing else is
  A values_[kPacks][kSize];
  uint32_t kept_;  // a bit for each value
};

// 64 registers a thread; exponentials of doubles take 118 where the row goes on to the next: with bounds that say a
// block of 512 threads may have a multiprocessor alone, the compiler grants them.
template <RowWay kWay, class T>
inline constexpr int kSoftmaxThreads = sizeof(T) == 8 && kWay == RowWay::cluster ? kRowThreads : kMostRowThreads;

template <RowWay kWay, bool kAligned, class T, class Mask>
__global__ void __launch_bounds__((kSoftmaxThreads<kWay, T>), 1)
    softmax_kernel(Softmax<T> call, Mask mask, RowGroups groups) {
  using A = compute_t<T>;
  begin_kernel();
  __shared__ A scratch[2][32];
  if constexpr (kWay == RowWay::many || kWay == RowWay::few) {
    const auto me = kWay == RowWay::few ? RowThread<>::half(groups) : RowThread<>(groups);
    SoftmaxRow<kWay, kAligned, 0, T, Mask> row(call, mask, me, call.cols);
    row.load();
    row.finish(scratch, [](const MaxSum<A>& all) { return all; });
  } else {
    RowCluster cluster(groups);
    __shared__ MaxSum<A> of_blocks[2][kMostCluster];
    const auto of_row = [&](const MaxSum<A>& of_block) {
      if (groups.cluster == 1) return of_block;
      return joined(cluster.gather(of_block, of_blocks), groups.cluster, call.factor);
    };
    if constexpr (kWay == RowWay::chunks) {
      const RowThread<> me(groups, groups.cluster_index());
      SoftmaxRow<kWay, kAligned, 0, T, Mask>(call, mask, me, call.cols).finish_long(groups, scratch, of_row);
    } else {
      auto me = cluster.thread<T>();
      SoftmaxRow<kWay, kAligned, kRowThreads, T, Mask> row(call, mask, me, groups.end(call.cols));
      cluster.each_row<kAligned>(me, call.rows, row, [&] { row.finish(scratch, of_row); });
    }
  }
}

template <bool kAligned, class T, class Mask>
Status softmax_rows(const Softmax<T>& call, const Mask& mask, const Context& context) {
  const auto run = [&](auto kernel, const Grid& grid, const RowGroups& groups) {
    return launch(context, kernel, grid, call, mask, groups);
  };
  const auto chunks = softmax_kernel<RowWay::chunks, kAligned, T, Mask>;
  // Of doubles, whose exponentials take the registers of two blocks of a cluster, one block of 1024 threads is faster.
  constexpr int kMost = sizeof(T) == 8 ? kMostRowThreads : kRowThreads;
  const RowGroups groups = block_or_cluster<T, packs_of(RowWay::many)>(call.cols, kMost, chunks);
  switch (way_of(groups, call.rows, call.cols)) {
    case RowWay::many:
      return run(softmax_kernel<RowWay::many, kAligned, T, Mask>, groups.grid(call.rows), groups);
    case RowWay::few: {
      const RowGroups few = with_half_the_packs(groups);
      return run(softmax_kernel<RowWay::few, kAligned, T, Mask>, few.grid(call.rows), few);
    }
    case RowWay::cluster:
      return run(softmax_kernel<RowWay::cluster, kAligned, T, Mask>,
                 cluster_grid(groups, call.rows, kAligned, NextRow<T, packs_of(RowWay::cluster)>::kBytes), groups);
    default:
      return run(chunks, groups.grid(call.rows), groups);
  }
}

template <class T, class Mask>
Status softmax_rows(const Softmax<T>& call, const Mask& mask, const Context& context) {
  const bool aligned = are_rows_aligned(call.cols, call.x, call.x_stride) && is_aligned(call.y);
  return aligned ? softmax_rows<true>(call, mask, context) : softmax_rows<false>(call, mask, context);
}

constexpr int kBackwardPacks = 4;  // of each tensor, per thread

template <bool kAligned, class T>
struct BackwardChunk {
  using A = compute_t<T>;

  const SoftmaxBackward<T>& call;
  const RowThread<>& me;
  const int64_t end;  // the column behind the last one of this block
  Pack<T> dy[kBackwardPacks], y[kBackwardPacks];

  __device__ void load(int64_t chunk) {
#pragma unroll
    for (int p = 0; p < kBackwardPacks; ++p) {
      const int64_t at = me.at<T>(chunk, p), n = count(at);
      dy[p] = load_row_pack<kAligned>(call.dy + me.row * call.dy_stride + at, n);
      y[p] = load_row_pack<kAligned>(call.y + me.row * call.y_stride + at, n);
    }
    forget_all();
  }

  __device__ void forget_all() {
#pragma unroll
    for (int p = 0; p < kBackwardPacks; ++p) forget(dy[p]), forget(y[p]);
  }

  __device__ A dot() const {
    A sum = 0;
#pragma unroll
    for (int p = 0; p < kBackwardPacks; ++p)
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) sum = fused(element(dy[p], i), element(y[p], i), sum);
    return sum;
  }

  __device__ void store(int64_t chunk, A sum) const {
#pragma unroll
    for (int p = 0; p < kBackwardPacks; ++p) {
      const int64_t at = me.at<T>(chunk, p);
      if (count(at) <= 0) return;
      A dx[kPackSize<T>];
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) dx[i] = call.scale * element(y[p], i) * (element(dy[p], i) - sum);
      store_row_pack<kAligned>(rounded<T>(dx), call.dx + me.row * call.cols + at, count(at));
    }
  }

  __device__ int64_t count(int64_t at) const { return me.row < call.rows ? end - at : 0; }
};

// Whether the row fits is asked at run time: known to the compiler, it would keep the elements of both tensors in the
// compute type, and spill 96 bytes.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kMostRowThreads) softmax_backward_kernel(SoftmaxBackward<T> call, RowGroups groups) {
  using A = compute_t<T>;
  begin_kernel();
  RowCluster cluster(groups);
  const RowThread<> me(groups, groups.cluster_index());
  BackwardChunk<kAligned, T> row{call, me, groups.end(call.cols)};
  const bool held = groups.holds(call.cols);
  A sum = 0;
  groups.each_chunk(call.cols, [&](int64_t chunk) {
    row.load(chunk);
    sum += row.dot();
    row.forget_all();
  });
  __shared__ A scratch[32], of_blocks[2][kMostCluster];
  sum = cluster.sum(row_reduce(me, sum, scratch, [](A a, A b) { return a + b; }), of_blocks);
  groups.each_chunk(call.cols, [&](int64_t chunk) {
    if (!held) row.load(chunk);
    row.store(chunk, sum);
  });
}

template <class T>
Status backward_rows(const SoftmaxBackward<T>& call, const Context& context) {
  const bool aligned = are_rows_aligned(call.cols, call.dy, call.dy_stride) &&
                       are_rows_aligned(call.cols, call.y, call.y_stride) && is_aligned(call.dx);
  const auto kernel = aligned ? softmax_backward_kernel<true, T> : softmax_backward_kernel<false, T>;
  const RowGroups groups = block_or_cluster<T, kBackwardPacks>(call.cols, kMostRowThreads, kernel);
  return launch(context, kernel, groups.grid(call.rows), call, groups);
}

}  // namespace
}  // namespace cuda

Status softmax_cuda(const Call& call) {
  return dispatch(call.outputs[0].dtype, [&](auto tag) {
    const Softmax<typename decltype(tag)::type> rows(call);
    const View* mask = call.inputs[rows.kMask];
    if (!mask) return cuda::softmax_rows(rows, cuda::NoMask(), call.context);
    return cuda::softmax_rows(rows, BroadcastMask(*mask, *call.inputs[rows.kX]), call.context);
  });
}

Status softmax_backward_cuda(const Call& call) {
  return dispatch(call.outputs[0].dtype, [&](auto tag) {
    return cuda::backward_rows(SoftmaxBackward<typename decltype(tag)::type>(call), call.context);
  });
}

}  // namespace fusedops
