// Limit: memory bandwidth. Every element is read once, held in registers while its row is reduced, and written once; a
// row of more than the registers of a cluster is read twice, the second time mostly from the L2 cache.
#include <limits>

#include "core/row_cluster.cuh"
#include "ops/softmax.h"

namespace fusedops {
namespace cuda {
namespace {

constexpr int kPacks = 4;             // per thread
constexpr int kClusterThreads = 512;  // two blocks to a multiprocessor: while one waits for its cluster, the other runs

struct NoMask {};

// The fewest threads that hold a row; of one that no block holds, a cluster, where the GPU has them.
template <class T, class Kernel>
RowGroups cluster_or_block(int64_t cols, Kernel kernel) {
  const RowGroups block = row_groups<T, kPacks>(cols);
  if (block.holds(cols)) return block;
  const RowGroups cluster = with_cluster(row_groups<T, kPacks>(cols, 128, kClusterThreads), cols, kernel);
  return cluster.cluster > 1 ? cluster : block;
}

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

// This thread's part of a chunk of the row. What is masked, or behind the end, is held as -inf.
template <bool kAligned, class T, class Mask>
struct SoftmaxChunk {
  using A = compute_t<T>;
  static constexpr int kSize = kPackSize<T>;
  static constexpr uint32_t kAll = (1u << kSize) - 1;

  const Softmax<T>& call;
  const RowThread<>& me;
  int64_t end = 0;                // columns from here on are masked, and not read
  const uint8_t* mask = nullptr;  // null: nothing else is
  A values[kPacks][kSize];
  uint32_t kept;  // a bit for each value

  __device__ SoftmaxChunk(const Softmax<T>& call, const Mask& all_masks, const RowThread<>& me) : call(call), me(me) {
    if (me.row >= call.rows) return;
    end = call.end(me.row);
    if constexpr (std::is_same_v<Mask, BroadcastMask>) {
      mask = all_masks.row(me.row);
      if (all_masks.has_columns()) return;
      if (!*mask) end = 0;  // one bool for the row
      mask = nullptr;
    }
  }

  __device__ void load(int64_t chunk) {
    Pack<T> packs[kPacks];
    kept = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t at = me.at<T>(chunk, p), count = end - at;
      packs[p] = load_row_pack<kAligned>(call.x + me.row * call.x_stride + at, count);
      uint32_t bits = count >= kSize ? kAll : count > 0 ? (1u << count) - 1 : 0;
      if constexpr (std::is_same_v<Mask, BroadcastMask>)
        if (mask && count > 0) bits &= kept_bits<kSize>(mask + at, count);
      kept |= bits << p * kSize;
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) values[p][i] = call.sign * element(packs[p], i);
      if (are_all_kept(p)) continue;
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        if (!is_kept(p, i)) values[p][i] = -std::numeric_limits<A>::infinity();
    }
  }

  __device__ A max(A start) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kSize; ++i) start = fmax(start, values[p][i]);
    return start;
  }

  // Replaces each value by its exponential, and returns their sum.
  __device__ A exponentials(A max) {
    A sum = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kSize; ++i) sum += values[p][i] = exp2_((values[p][i] - max) * call.factor);
    return sum;
  }

  __device__ void store(int64_t chunk, A factor) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t at = me.at<T>(chunk, p), count = me.row < call.rows ? call.cols - at : 0;
      if (count <= 0) return;
      A shares[kSize];
#pragma unroll
      for (int i = 0; i < kSize; ++i) shares[i] = values[p][i] * factor;
      if (!are_all_kept(p)) {  // zero, even in a row of NaN
#pragma unroll
        for (int i = 0; i < kSize; ++i)
          if (!is_kept(p, i)) shares[i] = 0;
      }
      store_row_pack<kAligned>(rounded<T>(shares), call.y + me.row * call.cols + at, count);
    }
  }

  __device__ bool is_kept(int p, int i) const { return kept >> (p * kSize + i) & 1; }
  __device__ bool are_all_kept(int p) const { return (kept >> p * kSize & kAll) == kAll; }
};

// Each thread takes the exponentials relative to the largest value that it has seen itself; the row's maximum then is a
// factor for each thread. Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
template <bool kAligned, bool kFits, class T, class Mask>
__global__ void __launch_bounds__(kMostRowThreads) softmax_kernel(Softmax<T> call, Mask mask, RowGroups groups) {
  using A = compute_t<T>;
  constexpr A kNothing = -std::numeric_limits<A>::infinity();
  begin_kernel();
  RowCluster cluster(groups);
  const RowThread<> me(groups, kFits ? blockIdx.x : groups.cluster_index());
  SoftmaxChunk<kAligned, T, Mask> row(call, mask, me);
  const auto each_chunk = [&](auto body) {
    if constexpr (kFits)
      body(int64_t(0));
    else
      groups.each_chunk(call.cols, body);
  };

  A max = kNothing, sum = 0;
  each_chunk([&](int64_t chunk) {
    row.load(chunk);
    const A before = max;
    max = row.max(max);
    const A base = max == kNothing ? A(0) : max;  // -inf minus -inf would be NaN before the whole row is known
    if constexpr (!kFits) sum *= exp2_((before - base) * call.factor);
    sum += row.exponentials(base);
  });

  __shared__ A scratch[2][32], of_blocks[2][kMostCluster];
  const auto over_row = [&](A value, int which, auto combine) {
    const A of_block = row_reduce(me, value, scratch[which], combine);
    return kFits ? of_block : cluster.reduce(of_block, of_blocks[which], combine);
  };
  const A row_max = over_row(max, 0, [](A a, A b) { return fmax(a, b); });
  const A share = exp2_((max - row_max) * call.factor);
  const A reciprocal = A(1) / over_row(sum * share, 1, [](A a, A b) { return a + b; });

  const bool held = kFits || groups.holds(call.cols);
  each_chunk([&](int64_t chunk) {
    if (held) return row.store(chunk, share * reciprocal);
    row.load(chunk);
    row.exponentials(row_max);
    row.store(chunk, reciprocal);
  });
}

template <class T, class Mask>
Status softmax_rows(const Softmax<T>& call, const Mask& mask, const Context& context) {
  const bool aligned = are_rows_aligned(call.cols, call.x, call.x_stride) && is_aligned(call.y);
  const auto kernel = row_groups<T, kPacks>(call.cols).holds(call.cols)
                          ? (aligned ? softmax_kernel<true, true, T, Mask> : softmax_kernel<false, true, T, Mask>)
                          : (aligned ? softmax_kernel<true, false, T, Mask> : softmax_kernel<false, false, T, Mask>);
  const RowGroups groups = cluster_or_block<T>(call.cols, kernel);
  return launch(context, kernel, groups.grid(call.rows), call, mask, groups);
}

template <bool kAligned, class T>
struct BackwardChunk {
  using A = compute_t<T>;

  const SoftmaxBackward<T>& call;
  const RowThread<>& me;
  Pack<T> dy[kPacks], y[kPacks];

  __device__ void load(int64_t chunk) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t at = me.at<T>(chunk, p), n = count(at);
      dy[p] = load_row_pack<kAligned>(call.dy + me.row * call.dy_stride + at, n);
      y[p] = load_row_pack<kAligned>(call.y + me.row * call.y_stride + at, n);
    }
    forget_all();
  }

  __device__ void forget_all() {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) forget(dy[p]), forget(y[p]);
  }

  __device__ A dot() const {
    A sum = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) sum += element(dy[p], i) * element(y[p], i);
    return sum;
  }

  __device__ void store(int64_t chunk, A sum) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t at = me.at<T>(chunk, p);
      if (count(at) <= 0) return;
      A dx[kPackSize<T>];
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) dx[i] = call.scale * element(y[p], i) * (element(dy[p], i) - sum);
      store_row_pack<kAligned>(rounded<T>(dx), call.dx + me.row * call.cols + at, count(at));
    }
  }

  __device__ int64_t count(int64_t at) const { return me.row < call.rows ? call.cols - at : 0; }
};

// Whether the row fits is asked at run time: known to the compiler, it would keep the elements of both tensors in the
// compute type, and spill 96 bytes.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kMostRowThreads) softmax_backward_kernel(SoftmaxBackward<T> call, RowGroups groups) {
  using A = compute_t<T>;
  begin_kernel();
  RowCluster cluster(groups);
  const RowThread<> me(groups, groups.cluster_index());
  BackwardChunk<kAligned, T> row{call, me};
  const bool held = groups.holds(call.cols);
  A sum = 0;
  groups.each_chunk(call.cols, [&](int64_t chunk) {
    row.load(chunk);
    sum += row.dot();
    row.forget_all();
  });
  __shared__ A scratch[32], of_blocks[kMostCluster];
  const auto add = [](A a, A b) { return a + b; };
  sum = cluster.reduce(row_reduce(me, sum, scratch, add), of_blocks, add);
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
  const RowGroups groups = cluster_or_block<T>(call.cols, kernel);
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
