// The backward of both norms: dx row by row, and the gradients of weight and bias, in one pass over dy and x.
//
// Limit: memory bandwidth; two tensors are read and one is written. A block keeps a slab of rows to itself and the
// columns' sums in registers, while the copy engine fetches the rows to come. The slabs' sums are added by a second,
// small kernel, in a fixed order. The statistics of the forward spare a second look at x.
#pragma once

#include "core/reduce.cuh"
#include "core/ring.cuh"
#include "core/rows.cuh"
#include "ops/norm_parameters.cuh"

namespace fusedops::cuda {

// One block has a multiprocessor to itself: 96 registers a thread hold 16 sums per parameter (8 in float64) beside a
// row.
inline constexpr int kNormBackwardThreads = 512;
template <class T>
inline constexpr int kNormBackwardPacks = sizeof(T) == 2 ? 2 : 4;

template <class T>
RowGroups norm_backward_groups(int64_t cols) {
  return row_groups<T, kNormBackwardPacks<T>>(cols, kNormBackwardThreads, kNormBackwardThreads);
}

// How the work is cut: a slab of rows by a segment of columns, which is the whole row unless that is too long for the
// threads of a block.
struct NormBackwardPlan {
  RowGroups groups;
  Slabs slabs;
  int64_t segments;
  int stages, stage_bytes;  // of the ring; 0 where rows are not aligned
  int tensors;              // read: dy and x, and ds if there is one
  int steps;                // in which a block walks a slab
};

// A slab of rows by a segment of columns, as a block walks it.
struct NormTile {
  template <class T>
  __device__ NormTile(const NormBackward<T>& norm, const NormBackwardPlan& plan, int64_t item)
      : slab(plan.segments == 1 ? item : item / plan.segments),
        row(slab * plan.groups.rows_per_block),
        end(norm.rows),
        column((item - slab * plan.segments) * plan.groups.chunk),
        columns(static_cast<int>(min(int64_t(plan.groups.chunk), norm.cols - column))) {}

  int64_t slab, row, end, column;
  int columns;
};

// Over a row: the sums of wdy * (x - mean), and of wdy, which RMSNorm does not need.
template <bool kCentered, class A>
struct NormSums {
  A wdy_x = 0;
  struct Nothing {};
  std::conditional_t<kCentered, A, Nothing> wdy = {};

  __device__ friend NormSums operator+(NormSums a, const NormSums& b) {
    a.wdy_x += b.wdy_x;
    if constexpr (kCentered) a.wdy += b.wdy;
    return a;
  }
};

// The statistics of a row.
template <bool kCentered, class A>
struct NormStatistics {
  A mean = 0, rstd = 0;

  template <class T>
  __device__ void load(const NormBackward<T>& norm, int64_t row, int64_t end) {
    rstd = row < end ? norm.rstd[row] : A(0);
    if constexpr (kCentered) mean = row < end ? norm.mean[row] : A(0);
  }

  __device__ A centered(A x) const { return kCentered ? x - mean : x; }
};

template <bool kCentered, class T, class A, class Weight>
__device__ NormSums<kCentered, A> terms(const Pack<T>& dy, const Pack<T>& x, const Weight& weight,
                                        const NormStatistics<kCentered, A>& row) {
  NormSums<kCentered, A> sums;
#pragma unroll
  for (int i = 0; i < kPackSize<T>; ++i) {
    const A wdy = element(dy, i) * weight[i];
    sums.wdy_x += wdy * row.centered(element(x, i));
    if constexpr (kCentered) sums.wdy += wdy;
  }
  return sums;
}

// What one block does: the slabs of rows that are its share, one after the other.
template <bool kAligned, bool kCentered, bool kMixed, class T>
class NormBackwardBlock {
 public:
  using A = compute_t<T>;
  static constexpr int kThreads = kNormBackwardThreads, kPacks = kNormBackwardPacks<T>, kPack = kPackSize<T>;
  static constexpr int kTensorBytes = kThreads * kPacks * int(sizeof(Pack<T>));
  static constexpr bool kRing = kAligned && kHasBulkCopies;

  __device__ NormBackwardBlock(const NormBackward<T>& norm, const NormBackwardPlan& plan, char* memory,
                               RingBarriers& barriers)
      : norm_(norm),
        plan_(plan),
        ring_(memory, barriers, plan.stages, plan.stage_bytes, kThreads / 32),
        corner_(reinterpret_cast<A*>(memory + plan.stages * plan.stage_bytes)),
        me_(plan.groups, 0),
        inverse_size_(A(1) / static_cast<A>(norm.cols)) {}

  // The warp that fetches the rows.
  __device__ void produce() {
    const auto nothing = [](const NormTile&) {};
    const auto order = [&](const NormTile& tile, int64_t row) {
      const int rows = static_cast<int>(max(int64_t(0), min(tile.end - row, int64_t(plan_.groups.rows_per_block))));
      const int row_bytes = tile.columns * int(sizeof(T));
      ring_.expect(static_cast<uint32_t>(rows * row_bytes * plan_.tensors));
      const auto copy = [&](int tensor, const T* from, int64_t stride) {
        ring_.copy_rows(tensor * kTensorBytes, from + row * stride + tile.column, stride * int64_t(sizeof(T)), rows,
                        row_bytes);
      };
      copy(0, norm_.dy, norm_.dy_stride);
      copy(1, norm_.x, norm_.x_stride);
      if (norm_.ds) copy(2, norm_.ds, norm_.ds_stride);
      ring_.advance();
    };
    for_steps(nothing, order, nothing);
  }

  // The other warps.
  __device__ void consume() {
    int step = 0;
    for_steps(
        [&](const NormTile& tile) {
          load_weight(tile);
          next_.load(norm_, tile.row + me_.row, tile.end);
        },
        [&](const NormTile& tile, int64_t row) { rows(tile, row + me_.row, step++); },
        [&](const NormTile& tile) {
          if (norm_.need_dweight) leave(tile, dweight_, norm_.partials);
          if (kCentered && norm_.need_dbias)
            leave(tile, dbias_, norm_.partials + norm_.need_dweight * plan_.slabs.count * norm_.cols);
        });
  }

 private:
  // Slabs take turns: what all blocks read at a time lies together in memory.
  __device__ int64_t row_step() const { return plan_.slabs.count * plan_.groups.rows_per_block; }

  // body(tile, first row) for every step of this block's slabs, between begin(tile) and end(tile) of each slab.
  template <class Begin, class Body, class End>
  __device__ void for_steps(Begin begin, Body body, End end) const {
    const int64_t items = plan_.slabs.count * plan_.segments;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
      const NormTile tile(norm_, plan_, item);
      int64_t row = tile.row;
      begin(tile);
      for (int i = 0; i < plan_.steps; ++i, row += row_step()) body(tile, row);
      end(tile);
    }
  }

  __device__ void load_weight(const NormTile& tile) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int at = me_.at<T>(p);
      weight_[p].load(norm_.weight, tile.column + at, tile.columns - at, kAbsentWeight,
                      norm_.weight.data ? static_cast<A>(norm_.offset) : A(0));
    }
  }

  // The rows of one step, side by side: their sums, then dx and what they add to the columns' sums. What lies in shared
  // memory is read twice rather than held.
  __device__ void rows(const NormTile& tile, int64_t row, int step) {
    const int columns = row < tile.end ? tile.columns : 0;
    const char* stage = kRing ? ring_.wait() : nullptr;
    const auto load = [&](int tensor, const T* data, int64_t stride, int at) {
      if (!kRing) return load_row_pack<kAligned>(data + row * stride + tile.column + at, columns - at);
      const T* staged = reinterpret_cast<const T*>(stage + tensor * kTensorBytes);
      Pack<T> pack = {};
      if (at < columns)
        pack = *reinterpret_cast<const Pack<T>*>(staged + static_cast<int>(me_.row) * tile.columns + at);
      return pack;  // zeros, which add nothing, where there is no such row or column
    };
    const NormStatistics<kCentered, A> statistics = next_;
    next_.load(norm_, row + row_step(), tile.end);  // a step ahead

    NormSums<kCentered, A> sums;
    if (plan_.segments == 1) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int at = me_.at<T>(p);
        sums = sums + terms(load(0, norm_.dy, norm_.dy_stride, at), load(1, norm_.x, norm_.x_stride, at), weight_[p],
                            statistics);
      }
      sums = row_reduce(
          me_, sums, scratch(step), [](auto a, auto b) { return a + b; }, [] { synchronize_consumers(kThreads); });
    } else if (columns > 0) {
      sums.wdy_x = norm_.row_sums[2 * row];
      if constexpr (kCentered) sums.wdy = norm_.row_sums[2 * row + 1];
    }

    // dx = rstd * (wdy - mean(wdy) - xhat * mean(wdy * xhat)), with as few operations per element as it takes.
    const A rstd = statistics.rstd, slope = sums.wdy_x * inverse_size_ * rstd * rstd * rstd;
    A shift = 0;
    if constexpr (kCentered) shift = sums.wdy * inverse_size_ * rstd;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int at = me_.at<T>(p);
      const Pack<T> dy = load(0, norm_.dy, norm_.dy_stride, at), x = load(1, norm_.x, norm_.x_stride, at);
      A dx[kPack];
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const A x_i = statistics.centered(element(x, i)), dy_i = element(dy, i), dy_rstd = dy_i * rstd;
        dweight_[p][i] += dy_rstd * x_i;
        dbias_[p][i] += dy_i;
        dx[i] = dy_rstd * weight_[p][i] - (x_i * slope + shift);
      }
      if (norm_.ds) {
        const Pack<T> ds = load(2, norm_.ds, norm_.ds_stride, at);
#pragma unroll
        for (int i = 0; i < kPack; ++i) dx[i] += element(ds, i);
      }
      if (norm_.dx)
        store_row_pack<kAligned>(rounded<T>(dx), norm_.dx + row * norm_.cols + tile.column + at, columns - at);
    }
    if (kRing) ring_.release();
  }

  // Writes the columns' sums of a slab, those of rows side by side added first, and starts them anew.
  __device__ void leave(const NormTile& tile, A (&sums)[kPacks][kPack], A* partials) {
    const int side_by_side = plan_.groups.rows_per_block, chunk = static_cast<int>(plan_.groups.chunk);
    partials += tile.slab * norm_.cols + tile.column;
    if (side_by_side == 1) {
      for_each(sums, [&](int at, A& sum) {
        if (at < tile.columns) partials[at] = sum;
        sum = 0;
      });
      return;
    }
    synchronize_consumers(kThreads);
    for_each(sums, [&](int at, A& sum) {
      corner_[static_cast<int>(me_.row) * chunk + at] = sum;
      sum = 0;
    });
    for (int half = side_by_side / 2; half > 0; half /= 2) {
      synchronize_consumers(kThreads);
      for (int i = threadIdx.x; i < half * chunk; i += kThreads) corner_[i] += corner_[i + half * chunk];
    }
    synchronize_consumers(kThreads);
    for (int i = threadIdx.x; i < tile.columns; i += kThreads) partials[i] = corner_[i];
  }

  template <class Body>
  __device__ void for_each(A (&sums)[kPacks][kPack], Body body) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kPack; ++i) body(me_.at<T>(p) + i, sums[p][i]);
  }

  // Room for one reduction, another than that of the step before.
  static __device__ NormSums<kCentered, A>* scratch(int step) {
    __shared__ NormSums<kCentered, A> sums[2][32];
    return sums[step & 1];
  }

  const NormBackward<T>& norm_;
  const NormBackwardPlan& plan_;
  Ring ring_;
  A* corner_;
  const RowThread me_;  // me_.row: of the rows side by side
  const A inverse_size_;
  NormStatistics<kCentered, A> next_;
  HeldParameter<kAligned, kMixed || !kCentered, T> weight_[kPacks];  // with the offset of RMSNorm
  A dweight_[kPacks][kPack] = {}, dbias_[kPacks][kPack] = {};
};

template <bool kAligned, bool kCentered, bool kMixed, class T>
__global__ void __launch_bounds__(kNormBackwardThreads + kProducerThreads)
    norm_backward_kernel(const __grid_constant__ NormBackward<T> norm, const __grid_constant__ NormBackwardPlan plan) {
  begin_kernel();
  extern __shared__ int4 memory[];
  __shared__ RingBarriers barriers;
  NormBackwardBlock<kAligned, kCentered, kMixed, T> block(norm, plan, reinterpret_cast<char*>(memory), barriers);
  if (threadIdx.x < kNormBackwardThreads)
    block.consume();
  else if (block.kRing)
    block.produce();
}

// The sums of rows that are too long for one block to hold: read here, and again by the kernel above.
template <bool kAligned, bool kCentered, class T>
__global__ void __launch_bounds__(kMostRowThreads) norm_row_sums_kernel(NormBackward<T> norm, RowGroups groups) {
  using A = compute_t<T>;
  begin_kernel();
  const RowThread me(groups);
  NormStatistics<kCentered, A> statistics;
  statistics.load(norm, me.row, norm.rows);
  NormSums<kCentered, A> sums;
  for (int64_t at = me.at<T>(0); at < norm.cols; at += groups.chunk) {
    const auto load = [&](const T* data, int64_t stride) {
      return load_row_pack<kAligned>(data + me.row * stride + at, norm.cols - at);
    };
    HeldParameter<kAligned, true, T> weight;
    weight.load(norm.weight, at, norm.cols - at, kAbsentWeight, norm.weight.data ? static_cast<A>(norm.offset) : A(0));
    sums = sums + terms(load(norm.dy, norm.dy_stride), load(norm.x, norm.x_stride), weight, statistics);
  }
  __shared__ NormSums<kCentered, A> scratch[32];
  sums = row_reduce(me, sums, scratch, [](auto a, auto b) { return a + b; });
  if (me.lane != 0) return;
  norm.row_sums[2 * me.row] = sums.wdy_x;
  if constexpr (kCentered) norm.row_sums[2 * me.row + 1] = sums.wdy;
}

template <bool kAligned, bool kCentered, bool kMixed, class T>
Status norm_backward(const NormBackward<T>& norm, const Context& context) {
  constexpr int kThreads = kNormBackwardThreads;
  // Of a multiprocessor's shared memory: the first leaves 60 KiB to the L1 cache, for the weight.
  constexpr int kRoom = 192 << 10, kMostRoom = 224 << 10;
  NormBackwardPlan plan;
  plan.groups = norm_backward_groups<T>(norm.cols);
  plan.slabs = slabs_of(norm.rows, plan.groups.rows_per_block);
  plan.segments = (norm.cols + plan.groups.chunk - 1) / plan.groups.chunk;
  plan.steps = static_cast<int>(plan.slabs.rows / plan.groups.rows_per_block);
  plan.tensors = norm.ds ? 3 : 2;
  const int chunk_bytes = kThreads * kNormBackwardPacks<T> * int(sizeof(Pack<T>));
  const int corner_bytes =
      plan.groups.rows_per_block > 1 ? chunk_bytes / int(sizeof(T)) * int(sizeof(compute_t<T>)) : 0;
  plan.stage_bytes = chunk_bytes * plan.tensors;
  const auto kernel = norm_backward_kernel<kAligned, kCentered, kMixed, T>;
  plan.stages = 0;
  if (kAligned && waits(kernel)) {
    plan.stages = std::min((kRoom - corner_bytes) / plan.stage_bytes, kMostStages);
    if (plan.stages < 2) plan.stages = (kMostRoom - corner_bytes) / plan.stage_bytes;
  }
  if (plan.segments > 1)
    FUSEDOPS_TRY(launch(context, norm_row_sums_kernel<kAligned, kCentered, T>, norm.rows, kMostRowThreads, norm,
                        row_groups<T, 1>(norm.cols, kMostRowThreads)));
  const int64_t blocks =
      std::min<int64_t>(plan.slabs.count * plan.segments, device_attribute(cudaDevAttrMultiProcessorCount));
  const int threads = kThreads + (plan.stages ? kProducerThreads : 0);
  return launch(context, kernel, Grid{blocks, threads, plan.stages * plan.stage_bytes + corner_bytes}, norm, plan);
}

template <bool kCentered, class T>
Status norm_backward(const NormBackward<T>& norm, const Context& context) {
  constexpr bool kCanMix = sizeof(T) == 2;
  const bool aligned =
      are_rows_aligned(norm.cols, norm.dy, norm.dy_stride) && are_rows_aligned(norm.cols, norm.x, norm.x_stride) &&
      are_rows_aligned(norm.cols, norm.ds, norm.ds_stride) && is_aligned(norm.dx) && is_aligned(norm.weight.data);
  const bool mixed = kCanMix && norm.weight.is_f32;
  if (norm.cols > 0)
    FUSEDOPS_TRY((!aligned ? norm_backward<false, kCentered, true>(norm, context)
                  : mixed  ? norm_backward<true, kCentered, kCanMix>(norm, context)
                           : norm_backward<true, kCentered, false>(norm, context)));
  const int64_t slabs = slabs_of(norm.rows, norm_backward_groups<T>(norm.cols).rows_per_block).count;
  if (norm.need_dweight) FUSEDOPS_TRY(sum_slabs(context, norm.partials, slabs, norm.cols, norm.dweight));
  if (norm.need_dbias)
    FUSEDOPS_TRY(
        sum_slabs(context, norm.partials + norm.need_dweight * slabs * norm.cols, slabs, norm.cols, norm.dbias));
  return {};
}

}  // namespace fusedops::cuda
