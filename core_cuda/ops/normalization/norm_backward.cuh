// The backward of both norms: dx row by row, and the gradients of weight and bias, in one pass over dy and x.
//
// Limit: memory bandwidth; two tensors are read and one is written. A block processes a row chunk and accumulates its
// column sums in registers, while each thread prefetches its elements of the next rows. A second, small kernel adds the
// chunks' sums in a fixed order. The forward's statistics save another pass over x.
#pragma once

#include "core/cuda/prefetch.cuh"
#include "core/cuda/random_words.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/rounding.cuh"
#include "core/cuda/rows.cuh"
#include "ops/normalization/norm.h"

namespace fusedops::cuda {

// One block per multiprocessor: 128 registers a thread hold 16 sums per parameter (8 in float64) besides the rows, and
// shared memory holds the rows of the next steps.
inline constexpr int kNormBackwardThreads = 512;
template <class T>
inline constexpr int kNormBackwardPacks = sizeof(T) == 2 ? 2 : 4;
// Rows per thread and step: two 16-bit rows share the latency of a reduction.
template <class T>
inline constexpr int kNormBackwardDepth = sizeof(T) == 2 ? 2 : 1;
// Prefetched steps: 128 or 192 KiB.
template <class T>
constexpr int norm_backward_stages(int tensors) {
  return sizeof(T) == 2 && tensors == 2 ? 3 : 2;
}

template <class T>
RowGroups norm_backward_groups(int64_t cols) {
  return row_groups<T, kNormBackwardPacks<T>>(cols, kNormBackwardThreads, kNormBackwardThreads);
}

// The partition into tiles: a row chunk by columns, all of them unless rows are too long for the threads of a block.
struct NormBackwardPlan {
  RowGroups groups;
  int step_rows;  // rows per step: rows side by side, times the depth of each thread
  RowChunks chunks;
  int64_t column_tiles;  // per row
  int steps;             // steps of a block through a chunk
};

// A tile and the walk through it.
struct NormTile {
  template <class T>
  __device__ NormTile(const NormBackward<T>& norm, const NormBackwardPlan& plan, int64_t index)
      : chunk(plan.column_tiles == 1 ? index : index / plan.column_tiles),
        row(chunk * plan.step_rows),
        end(norm.rows),
        column((index - chunk * plan.column_tiles) * plan.groups.tile),
        columns(static_cast<int>(min(int64_t(plan.groups.tile), norm.cols - column))) {}

  int64_t chunk, row, end, column;
  int columns;
};

template <bool kCentered, class A>
struct NormStatistics {
  A mean = 0, rstd = 0;

  template <class T>
  __device__ void load(const NormBackward<T>& norm, int64_t row, int64_t end) {
    rstd = row < end ? norm.rstd[row] : A(0);
    if constexpr (kCentered) mean = row < end ? norm.mean[row] : A(0);
  }

  __device__ A xhat(A x) const { return product(kCentered ? x - mean : x, rstd); }
};

// The number of sums over a row: wdy * xhat, and wdy for LayerNorm.
template <bool kCentered>
inline constexpr int kNormSums = kCentered ? 2 : 1;

// `count`: the number of valid elements of the pack (aligned: all or none). Others must not contribute 0 * inf.
template <bool kAligned, bool kCentered, class T, class A, class Weight>
__device__ Sums<A, kNormSums<kCentered>> terms(const Pack<T>& dy, const Pack<T>& x, const Weight& weight,
                                               const NormStatistics<kCentered, A>& row, int64_t count) {
  Sums<A, kNormSums<kCentered>> sums;
#pragma unroll
  for (int i = 0; i < kPackSize<T>; ++i) {
    if (!kAligned && i >= count) continue;
    const A wdy = product(element(dy, i), weight[i]);
    sums[0] = fused(wdy, row.xhat(element(x, i)), sums[0]);
    if constexpr (kCentered) sums[1] += wdy;
  }
  return count > 0 ? sums : Sums<A, kNormSums<kCentered>>();
}

// kTensors: 2 for dy and x, 3 with ds.
template <bool kAligned, bool kCentered, bool kDropout, bool kMixed, int kTensors, class T>
class NormBackwardBlock {
 public:
  using A = compute_t<T>;
  static constexpr int kThreads = kNormBackwardThreads, kPacks = kNormBackwardPacks<T>, kPack = kPackSize<T>;
  static constexpr int kDepth = kNormBackwardDepth<T>, kSums = kNormSums<kCentered>;
  static constexpr int kStages = norm_backward_stages<T>(kTensors);
  using Statistics = NormStatistics<kCentered, A>;
  using Rows = Prefetch<T, kThreads, kStages, kDepth * kPacks * kTensors>;

  __device__ NormBackwardBlock(const NormBackward<T>& norm, const NormBackwardPlan& plan, char* memory)
      : norm_(norm),
        plan_(plan),
        staged_(memory),
        side_sums_(reinterpret_cast<A*>(kAligned ? memory + Rows::kBytes : memory)),
        me_(plan.groups, 0),
        inverse_size_(A(1) / static_cast<A>(norm.cols)) {}

  __device__ void run() {
    const int64_t tiles = plan_.chunks.count * plan_.column_tiles;
    for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
      const NormTile tile(norm_, plan_, index);
      load_weight(tile);
      load_statistics(tile, tile.row);
      for (int step = 0; step < kStages; ++step) prefetch(tile, step);
      for (int step = 0; step < plan_.steps; ++step) process(tile, step);
      if (norm_.need_dweight) store_sums(tile, dweight_, norm_.partials);
      if (kCentered && norm_.need_dbias)
        store_sums(tile, dbias_, norm_.partials + norm_.need_dweight * plan_.chunks.count * norm_.cols);
      // After an odd number of steps, the next chunk's first reduction reuses the scratch of the last one
      __syncthreads();
    }
  }

 private:
  // The rows of the chunks alternate, so that the rows that all blocks read at a time are contiguous.
  __device__ int64_t row_step() const { return plan_.chunks.count * plan_.step_rows; }

  __device__ void load_weight(const NormTile& tile) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int at = me_.at<T>(p);
      weight_[p].load(norm_.weight, tile.column + at, tile.columns - at, kAbsentWeight,
                      norm_.weight.data ? static_cast<A>(norm_.offset) : A(0));
    }
  }

  // store_row_pack(), but as an assignment, which the compiler keeps whole here. With store_whole() registers spill.
  static __device__ void store(const Pack<T>& pack, T* to, int64_t count) {
    if constexpr (!kAligned) return store_pack<false>(pack, to, count);
    if (count > 0) *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(&pack);
  }

  __device__ void load_statistics(const NormTile& tile, int64_t first) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) next_[d].load(norm_, row_at(first, d), tile.end);
  }

  __device__ int64_t row_at(int64_t first, int d) const { return first + place_at(d); }
  __device__ int place_at(int d) const { return d * plan_.groups.rows_per_block + static_cast<int>(me_.row); }

  // The index of pack p of row d of a step, in the order dy, x, ds.
  static __device__ int place(int tensor, int d, int p) { return (d * kPacks + p) * kTensors + tensor; }

  __device__ void prefetch(const NormTile& tile, int step) const {
    if constexpr (kAligned) {
      const int64_t first = tile.row + step * row_step();
      if (step < plan_.steps) {
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
          const int64_t row = row_at(first, d);
          const int columns = row < tile.end ? tile.columns : 0;
#pragma unroll
          for (int p = 0; p < kPacks; ++p) {
            const int at = me_.at<T>(p);
            const auto prefetch = [&](int tensor, const T* data, int64_t stride) {
              staged_.prefetch(step, place(tensor, d, p), data + row * stride + tile.column + at, at < columns);
            };
            prefetch(0, norm_.dy, norm_.dy_stride);
            prefetch(1, norm_.x, norm_.x_stride);
            if constexpr (kTensors == 3) prefetch(2, norm_.ds, norm_.ds_stride);
          }
        }
      }
      staged_.commit();
    }
  }

  // The rows of one step: their sums, then dx and their terms of the column sums. Elements are read twice from shared
  // memory instead of being held in registers.
  __device__ void process(const NormTile& tile, int step) {
    const int64_t first = tile.row + step * row_step();
    const auto load = [&](int tensor, const T* data, int64_t stride, int d, int p) {
      if constexpr (kAligned) return staged_.get(step, place(tensor, d, p));
      const int at = me_.at<T>(p), columns = row_at(first, d) < tile.end ? tile.columns : 0;
      return load_row_pack<kAligned>(data + row_at(first, d) * stride + tile.column + at, columns - at);
    };
    if constexpr (kAligned) staged_.wait();
    Statistics statistics[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) statistics[d] = next_[d];
    load_statistics(tile, first + row_step());  // one step ahead

    Sums<A, kDepth * kSums> sums;
    if (plan_.column_tiles == 1) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
          auto pack_sums =
              terms<kAligned>(load(0, norm_.dy, norm_.dy_stride, d, p), load(1, norm_.x, norm_.x_stride, d, p),
                              weight_[p], statistics[d], tile.columns - me_.at<T>(p));
#pragma unroll
          for (int k = 0; k < kSums; ++k) sums[d * kSums + k] += pack_sums[k];
        }
      sums = row_reduce(me_, sums, scratch(step), [](const auto& a, const auto& b) { return a + b; });
    } else {
#pragma unroll
      for (int d = 0; d < kDepth; ++d)
#pragma unroll
        for (int k = 0; k < kSums; ++k)
          if (row_at(first, d) < tile.end) sums[d * kSums + k] = norm_.row_sums[2 * row_at(first, d) + k];
    }

#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      A dweight[kPack] = {}, dbias[kPack] = {};
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const Pack<T> dy = load(0, norm_.dy, norm_.dy_stride, d, p), x = load(1, norm_.x, norm_.x_stride, d, p);
        const A mean_wdy_xhat = product(sums[d * kSums], inverse_size_);
        A mean_wdy = 0;
        if constexpr (kCentered) mean_wdy = product(sums[d * kSums + 1], inverse_size_);
        A dx[kPack];
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          const A xhat = statistics[d].xhat(element(x, i)), dy_i = element(dy, i), wdy = product(dy_i, weight_[p][i]);
          dweight[i] = fused(dy_i, xhat, dweight[i]);
          dbias[i] += dy_i;
          dx[i] = product(statistics[d].rstd, fused(-xhat, mean_wdy_xhat, kCentered ? wdy - mean_wdy : wdy));
        }
        if constexpr (kTensors == 3) {
          const Pack<T> ds = load(2, norm_.ds, norm_.ds_stride, d, p);
#pragma unroll
          for (int i = 0; i < kPack; ++i) dx[i] += element(ds, i);
        }
        const int at = me_.at<T>(p), columns = row_at(first, d) < tile.end ? tile.columns : 0;
        if (norm_.dx) store(rounded<T>(dx), norm_.dx + row_at(first, d) * norm_.cols + tile.column + at, columns - at);
        if constexpr (kDropout) {
          const int64_t position = row_at(first, d) * norm_.cols + tile.column + at;
          const auto dropped = norm_.dropout.template prepared<T>();
          const RandomWords<kPack, kAligned> words(dropped.seed, norm_.dropout.place(position));
#pragma unroll
          for (int i = 0; i < kPack; ++i) dx[i] = dropped(words[i], dx[i]);
          if (norm_.dropped_dx) store(rounded<T>(dx), norm_.dropped_dx + position, columns - at);
        }
      }
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        dweight_[p][i] += dweight[i];
        dbias_[p][i] += dbias[i];
      }
    }
    prefetch(tile, step + kStages);
  }

  // Stores the column sums of a chunk, after adding those of rows side by side, and resets them.
  __device__ void store_sums(const NormTile& tile, A (&sums)[kPacks][kPack], A* partials) {
    const int side_by_side = plan_.groups.rows_per_block, width = plan_.groups.tile;
    partials += tile.chunk * norm_.cols + tile.column;
    if (side_by_side == 1) {
      for_each(sums, [&](int at, A& sum) {
        if (at < tile.columns) partials[at] = sum;
        sum = 0;
      });
      return;
    }
    __syncthreads();
    for_each(sums, [&](int at, A& sum) {
      side_sums_[static_cast<int>(me_.row) * width + at] = sum;
      sum = 0;
    });
    for (int half = side_by_side / 2; half > 0; half /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < half * width; i += kThreads) side_sums_[i] += side_sums_[i + half * width];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < tile.columns; i += kThreads) partials[i] = side_sums_[i];
  }

  template <class Body>
  __device__ void for_each(A (&sums)[kPacks][kPack], Body body) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kPack; ++i) body(me_.at<T>(p) + i, sums[p][i]);
  }

  // Scratch for one reduction, alternating from step to step.
  static __device__ Sums<A, kDepth * kSums>* scratch(int step) {
    __shared__ Sums<A, kDepth * kSums> sums[2][32];
    return sums[step & 1];
  }

  const NormBackward<T>& norm_;
  const NormBackwardPlan& plan_;
  const Rows staged_;
  A* side_sums_;          // column sums of rows side by side
  const RowThread<> me_;  // me_.row: index among the rows side by side
  const A inverse_size_;
  Statistics next_[kDepth];
  HeldParameter<kAligned, kMixed || !kCentered, T> weight_[kPacks];  // includes the offset of RMSNorm
  A dweight_[kPacks][kPack] = {}, dbias_[kPacks][kPack] = {};
};

template <bool kAligned, bool kCentered, bool kDropout, bool kMixed, int kTensors, class T>
__global__ void __launch_bounds__(kNormBackwardThreads)
    norm_backward_kernel(const __grid_constant__ NormBackward<T> norm, const __grid_constant__ NormBackwardPlan plan) {
  begin_kernel();
  extern __shared__ int4 memory[];
  NormBackwardBlock<kAligned, kCentered, kDropout, kMixed, kTensors, T>(norm, plan, reinterpret_cast<char*>(memory))
      .run();
}

// The sums of rows too long for a block to hold. norm_backward_kernel reads the rows again.
template <bool kAligned, bool kCentered, class T>
__global__ void __launch_bounds__(kMaxRowThreads) norm_row_sums_kernel(NormBackward<T> norm, RowGroups groups) {
  using A = compute_t<T>;
  begin_kernel();
  const RowThread<> me(groups);
  NormStatistics<kCentered, A> statistics;
  statistics.load(norm, me.row, norm.rows);
  Sums<A, kNormSums<kCentered>> sums;
  for (int64_t at = me.at<T>(0); at < norm.cols; at += groups.tile) {
    const auto load = [&](const T* data, int64_t stride) {
      return load_row_pack<kAligned>(data + me.row * stride + at, norm.cols - at);
    };
    HeldParameter<kAligned, true, T> weight;
    weight.load(norm.weight, at, norm.cols - at, kAbsentWeight, norm.weight.data ? static_cast<A>(norm.offset) : A(0));
    sums = sums + terms<kAligned>(load(norm.dy, norm.dy_stride), load(norm.x, norm.x_stride), weight, statistics,
                                  norm.cols - at);
  }
  __shared__ Sums<A, kNormSums<kCentered>> scratch[32];
  sums = row_reduce(me, sums, scratch, [](const auto& a, const auto& b) { return a + b; });
  if (me.index != 0) return;
#pragma unroll
  for (int k = 0; k < kNormSums<kCentered>; ++k) norm.row_sums[2 * me.row + k] = sums[k];
}

template <bool kAligned, bool kCentered, bool kDropout, bool kMixed, int kTensors, class T>
Status launch_norm_backward_kernel(const NormBackward<T>& norm, const Context& context) {
  using Block = NormBackwardBlock<kAligned, kCentered, kDropout, kMixed, kTensors, T>;
  NormBackwardPlan plan;
  plan.groups = norm_backward_groups<T>(norm.cols);
  plan.step_rows = plan.groups.rows_per_block * Block::kDepth;
  plan.chunks = row_chunks_of(norm.rows, plan.step_rows);
  plan.column_tiles = (norm.cols + plan.groups.tile - 1) / plan.groups.tile;
  plan.steps = static_cast<int>(plan.chunks.rows / plan.step_rows);
  const int side_sums_bytes = plan.groups.rows_per_block > 1
                                  ? plan.groups.block_threads * Block::kPacks * kPackSize<T> * int(sizeof(compute_t<T>))
                                  : 0;
  const int shared_bytes = (kAligned ? Block::Rows::kBytes : 0) + side_sums_bytes;
  if constexpr (kAligned)  // other GPUs than 9.0 and 10.0 have less shared memory: the same bits, without prefetching
    if (shared_bytes + kMaxStaticShared > device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin))
      return launch_norm_backward_kernel<false, kCentered, kDropout, true, kTensors>(norm, context);
  if (plan.column_tiles > 1)
    FUSEDOPS_TRY(launch(context, norm_row_sums_kernel<kAligned, kCentered, T>, norm.rows, kMaxRowThreads, norm,
                        row_groups<T, 1>(norm.cols, kMaxRowThreads)));
  const int64_t blocks =
      std::min<int64_t>(plan.chunks.count * plan.column_tiles, device_attribute(cudaDevAttrMultiProcessorCount));
  return launch(context, norm_backward_kernel<kAligned, kCentered, kDropout, kMixed, kTensors, T>,
                Grid{blocks, kNormBackwardThreads, shared_bytes}, norm, plan);
}

template <bool kAligned, bool kCentered, bool kDropout, bool kMixed, class T>
Status norm_backward_with_or_without_ds(const NormBackward<T>& norm, const Context& context) {
  return norm.ds ? launch_norm_backward_kernel<kAligned, kCentered, kDropout, kMixed, 3>(norm, context)
                 : launch_norm_backward_kernel<kAligned, kCentered, kDropout, kMixed, 2>(norm, context);
}

template <bool kCentered, bool kDropout, class T>
Status launch_norm_backward(const NormBackward<T>& norm, const Context& context) {
  using A = compute_t<T>;
  constexpr bool kCanMix = sizeof(T) == 2;
  const bool aligned = are_rows_aligned(norm.cols, norm.dy, norm.dy_stride) &&
                       are_rows_aligned(norm.cols, norm.x, norm.x_stride) &&
                       are_rows_aligned(norm.cols, norm.ds, norm.ds_stride) && is_aligned(norm.dx) &&
                       is_aligned(norm.dropped_dx) && is_aligned(norm.weight.data);
  const bool mixed = kCanMix && norm.weight.is_f32;
  if (norm.cols > 0)
    FUSEDOPS_TRY((!aligned ? norm_backward_with_or_without_ds<false, kCentered, kDropout, true>(norm, context)
                  : mixed  ? norm_backward_with_or_without_ds<true, kCentered, kDropout, kCanMix>(norm, context)
                           : norm_backward_with_or_without_ds<true, kCentered, kDropout, false>(norm, context)));
  const int64_t chunks =
      row_chunks_of(norm.rows, norm_backward_groups<T>(norm.cols).rows_per_block * kNormBackwardDepth<T>).count;
  const A* partials = norm.partials;
  if (norm.need_dweight && norm.need_dbias && norm.dweight.dtype == norm.dbias.dtype)
    return sum_row_chunks(context, partials, chunks, norm.cols, norm.dweight, &norm.dbias);
  if (norm.need_dweight) FUSEDOPS_TRY(sum_row_chunks(context, partials, chunks, norm.cols, norm.dweight));
  if (norm.need_dweight) partials += chunks * norm.cols;
  return norm.need_dbias ? sum_row_chunks(context, partials, chunks, norm.cols, norm.dbias) : Status();
}

// kDropout: the call has a seed.
template <const Signature& kOp, bool kDropout = false>
Status norm_backward(const Call& call) {
  return dispatch(call.inputs[input_of(kOp, "x")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return launch_norm_backward<kIsCentered<kOp>, kDropout>(norm_backward_of<kOp, T>(call), call.context);
  });
}

}  // namespace fusedops::cuda
