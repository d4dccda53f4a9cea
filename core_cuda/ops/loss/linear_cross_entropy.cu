// The CUDA steps of linear_cross_entropy for a block of logits. Limit: the four products. On compute capability 9.x the
// logits stay in registers in the epilogue of the product; otherwise their sums are written and read once, in L2.
#include "core/cuda/gpu.h"
#include "core/cuda/launch.cuh"
#include "ops/loss/linear_cross_entropy.h"
#include "ops/loss/linear_cross_entropy_dispatch.h"
#include "ops/loss/linear_cross_entropy_loops.h"
#include "ops/loss/losses.cuh"
#include "ops/products/aligned_copies.h"
#include "ops/products/matmul_kernels.h"

namespace fusedops {
namespace cuda {
namespace {

// Computes the logit of a sum, and stores the logit of the label.
template <class T>
struct BlockLogit {
  LogitBlock<T> block;
  Labels labels;
  compute_t<T>* label_logits;

  __device__ compute_t<T> operator()(int64_t i, int64_t column, compute_t<T> sum) const {
    const compute_t<T> value = block.logit(sum, column).value;
    const int64_t row = block.row + i;
    if (labels[row] == block.first_class + column) label_logits[row] = value;
    return value;
  }
};

template <class A>
struct StoredLabelLogit {
  const A* values;

  __device__ A operator()(int64_t row, int64_t) const { return values[row]; }
};

// Combines at most kFinePerTile fine tiles into each tile of `coarse`, with a warp per row and tile.
constexpr int kFinePerTile = LossTiles::kTileBytes / sizeof(float) / kFineColumns;

__global__ void __launch_bounds__(kThreads)
    combine_tiles_kernel(const LossRows<float> losses, const RowStats<float>* fine, int64_t rows, int64_t tiles,
                         int64_t fine_tiles, const TileStats<float> coarse) {
  begin_kernel();
  const int64_t warp = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32, row = warp / tiles, tile = warp % tiles;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const int count = min(int64_t(kFinePerTile), fine_tiles - tile * kFinePerTile);
  fine += row * fine_tiles + tile * kFinePerTile;
  // Each lane combines adjacent tiles, then lanes are combined pairwise.
  constexpr int kPerLane = kFinePerTile / 32;
  const int own = max(0, min(kPerLane, count - lane * kPerLane));
  RowStats<float> sums = losses.combined(fine + lane * kPerLane, own);
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const RowStats<float> pair[2] = {sums,
                                     {exchanged(sums.max, offset), exchanged(sums.exponentials, offset),
                                      exchanged(sums.moment, offset), exchanged(sums.share, offset)}};
    sums = losses.combined(pair, 2);
  }
  if (lane == 0) coarse.at(row, tile) = sums;
}

constexpr int kGradientPacks = 4;  // per thread: many bytes in flight

// dz, [rows, columns], of a block of logits. dz may have the memory of the sums. Limit: memory bandwidth.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads)
    block_gradient_kernel(const LossGradient<compute_t<T>> gradient, const LogitBlock<T> block, T* dz,
                          const RowTiles tiles) {
  using A = compute_t<T>;
  constexpr int kSize = kPackSize<T>, kWideSize = kPackSize<A>, kWidePacks = kSize / kWideSize;
  begin_kernel();
  const TileThread me(tiles);
  if (me.row >= block.rows) return;
  const int64_t row = block.row + me.row, label = gradient.labels[row];
  const bool is_zero = gradient.is_zero(label);  // uniform over the threads of the row
  const A* const sums = block.products + me.row * block.stride;
  Pack<A> packs[kGradientPacks][kWidePacks] = {};
  if (!is_zero) {
#pragma unroll
    for (int p = 0; p < kGradientPacks; ++p)
#pragma unroll
      for (int part = 0; part < kWidePacks; ++part) {
        const int64_t at = me.at<T>(me.start, p) + part * kWideSize;
        packs[p][part] = load_row_pack<kAligned>(sums + at, block.columns - at);
      }
  }
  const auto derivative = gradient.derivative(row);
  const A of_label = gradient.target_of_label(row, label);
  // Stores dz. dz_of(sum, column) is an element.
  const auto store = [&](auto&& dz_of) {
#pragma unroll
    for (int p = 0; p < kGradientPacks; ++p) {
      const int64_t at = me.at<T>(me.start, p);
      if (at >= block.columns) return;
      A values[kSize] = {};
      if (!is_zero) {
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          if (!kAligned && at + i >= block.columns) break;
          values[i] = dz_of(packs[p][i / kWideSize].values[i % kWideSize], at + i);
        }
      }
      store_row_pack<kAligned>(rounded<T>(values), dz + me.row * block.columns + at, block.columns - at);
    }
  };
  // The arithmetic of options that are absent would take as long as the memory traffic.
  if constexpr (kAligned && sizeof(T) < sizeof(A))
    if (block.is_plain() && !gradient.has_shares() && !gradient.dentropy) {
      const int64_t own = label - block.first_class;
      store([&](A z, int64_t column) { return derivative(z, column == own ? of_label : gradient.uniform); });
      return;
    }
  store([&](A sum, int64_t column) {
    const auto logit = block.logit(sum, column);
    const int64_t of_class = block.first_class + column;
    const A target = of_class == label ? of_label : gradient.target(of_class);
    return derivative.with_entropy(logit.value, target) * logit.slope;
  });
}

// Sums of the label weights of blocks of rows, in the order of row_losses_kernel.
template <class A>
__global__ void __launch_bounds__(kThreads) row_counts_kernel(const Losses<A> losses, Total<A>* totals) {
  begin_kernel();
  const int64_t row = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const A count = block_sum<kThreads>(row < losses.rows ? losses.counted(losses.labels[row]) : A(0));
  if (threadIdx.x == 0) totals[blockIdx.x] = {0, count};
}

struct Gpu {
  // A GPU cannot raise: a label that is no class makes its results NaN.
  template <class A>
  static Status check_labels(const LossRows<A>&, const Call&) {
    return {};
  }

  static Status multiply(const Matmul& product, void* workspace, const Context& context) {
    return multiply_cuda(product, workspace, context);
  }

  static Status choose(const LogitsProblem& problem, LogitsKernel* kernel) {
    GpuProperties gpu;
    FUSEDOPS_TRY(current_gpu(&gpu));
    const LogitsEntry& entry = first_that_accepts(kLogits, problem, gpu);
    log_kernel(entry, gpu);
    *kernel = entry.kernel;
    return {};
  }

  // The sums of the rows of a block, whose logits stay in registers; they are also stored if the block has memory for
  // them. `fine`: memory for the sums of fine tiles.
  template <class T>
  static Status sum_in_registers(const LossRows<compute_t<T>>& losses, const LinearLogits& linear,
                                 const LogitBlock<T>& block, void* fine, const LossMemory<compute_t<T>>& memory,
                                 int64_t tile, const Context& context) {
#ifdef FUSEDOPS_SM90
    if constexpr (sizeof(T) == 2) {
      auto* const sums = static_cast<RowStats<float>*>(fine);
      const int64_t per_row = fine_tiles(block.columns), tiles = LossTiles(block.rows, block.columns, DType::f32).tiles;
      FUSEDOPS_TRY(sum_logits_sm90(losses, linear.product(block), block, sums, memory.label_logits, context));
      const TileStats<float> coarse = {memory.tile_stats + block.row * memory.tiles + tile, memory.tiles};
      return launch(context, combine_tiles_kernel, (block.rows * tiles * 32 + kThreads - 1) / kThreads, kThreads,
                    losses, sums, block.rows, tiles, per_row, coarse);
    }
#endif
    return {};
  }

  template <class T>
  static Status sum_fused(const LossRows<compute_t<T>>& losses, const LinearLogits& linear, int64_t column,
                          int64_t columns, compute_t<T>* memory_of_sums, const LossMemory<compute_t<T>>& memory,
                          int64_t tile, const Context& context, bool* done) {
    const Matmul product = linear.product(linear.block<T>(0, linear.rows, column, columns, nullptr));
    LogitsKernel kernel;
    FUSEDOPS_TRY(choose({product, linear.softcap, nullptr}, &kernel));
    *done = kernel == LogitsKernel::sm90;
    if (!*done) return {};
    const int64_t most = linear.block_bytes() / (fine_tiles(columns) * sizeof(RowStats<float>));
    for (int64_t row = 0; row < linear.rows; row += most)
      FUSEDOPS_TRY(sum_in_registers(losses, linear,
                                    linear.block<T>(row, std::min(most, linear.rows - row), column, columns, nullptr),
                                    memory_of_sums, memory, tile, context));
    return {};
  }

  // The sums of a block of rows, whose logits are stored. Its dz, which follows, lends its memory to the fine tiles.
  template <class A, class T>
  static Status sum_rows(const LossRows<A>& losses, const LinearLogits& linear, const LogitBlock<T>& block, T* dz,
                         const LossMemory<A>& memory, int64_t tile, const Context& context) {
    const Matmul product = linear.product(block);
    LogitsKernel kernel;
    FUSEDOPS_TRY(choose({product, linear.softcap, dz}, &kernel));
    if (kernel == LogitsKernel::sm90) return sum_in_registers(losses, linear, block, dz, memory, tile, context);
    FUSEDOPS_TRY(multiply(product, nullptr, context));
    return reduce_block(losses, block, memory, tile, context);
  }

  // The kernels add in the order of finish_rows and finish_total, which store the losses later.
  template <class A>
  static Status count(const Losses<A>& losses, const LossMemory<A>& memory, const Call& call) {
    FUSEDOPS_TRY(launch(call.context, row_counts_kernel<A>, blocks_of(losses), kThreads, losses, totals_of(memory)));
    return finish_total(losses, memory, call.context);
  }

  // The rows begin at a multiple of LossTiles::kBlockRows.
  template <class A>
  static Status finish_rows(const Losses<A>& losses, const LossMemory<A>& memory, int64_t row, int64_t rows,
                            const Context& context) {
    const TileStats<A> sums = {memory.tile_stats + row * memory.tiles, memory.tiles};
    const Losses<A> part = losses.rows_from(row, rows);
    return launch(context, row_losses_kernel<A, StoredLabelLogit<A>>, blocks_of(part), kThreads, part, sums,
                  StoredLabelLogit<A>{memory.label_logits + row}, totals_of(memory) + row / kThreads);
  }

  template <class A>
  static Status finish_total(const Losses<A>& losses, const LossMemory<A>& memory, const Context& context) {
    return launch(context, loss_totals_kernel<A>, 1, kSumThreads, losses, totals_of(memory), blocks_of(losses));
  }

  template <class T>
  static Status differentiate_fused(const LossGradient<compute_t<T>>& gradient, const LinearLogits& linear,
                                    int64_t column, int64_t columns, T* dz, const Context& context, bool* done) {
    const auto block = linear.block<T>(0, linear.rows, column, columns, nullptr);
    const Matmul product = linear.product(block);
    LogitsKernel kernel;
    FUSEDOPS_TRY(choose({product, linear.softcap, dz}, &kernel));
    *done = kernel == LogitsKernel::sm90;
#ifdef FUSEDOPS_SM90
    if constexpr (sizeof(T) == 2)
      if (*done) return differentiate_logits_sm90(gradient, product, block, dz, context);
#endif
    return {};
  }

  template <class A, class T>
  static Status reduce_block(const LossRows<A>& losses, const LogitBlock<T>& block, const LossMemory<A>& memory,
                             int64_t tile, const Context& context) {
    const LogitRows<A> logits = {block.products, block.columns, block.rows, block.columns};
    const TileStats<A> to = {memory.tile_stats + block.row * memory.tiles + tile, memory.tiles};
    LossRows<A> of_block = losses;
    of_block.first_class = block.first_class;
    return cuda::store_tile_stats<A>(of_block, logits, BlockLogit<T>{block, losses.labels, memory.label_logits}, to,
                                     context);
  }

  template <class A>
  static Status finish(const Losses<A>& losses, const LossMemory<A>& memory, const Call& call) {
    return finish_losses(losses, TileStats<A>{memory.tile_stats, memory.tiles},
                         StoredLabelLogit<A>{memory.label_logits}, totals_of(memory), call.context);
  }

  template <class A, class T>
  static Status differentiate(const LossGradient<A>& gradient, const LogitBlock<T>& block, T* dz,
                              const Context& context) {
    const RowTiles tiles = row_tiles<T, kGradientPacks>(block.columns);
    const bool aligned = are_rows_aligned(block.columns, dz, block.columns);
    return launch(context, aligned ? block_gradient_kernel<true, T> : block_gradient_kernel<false, T>,
                  tiles.blocks(block.rows), tiles.groups.block_threads, gradient, block, dz, tiles);
  }

  static Status finish_sums(const Matmul& product, const void* sums, int64_t count, const Context& context) {
    return cuda::finish_sums(product, sums, count, context);
  }

  static Status copy(const ApartColumns& part, const Context& context) {
    return copy_lines({{part.from, false, part.columns, 0}, 1, part.rows, part.columns, part.to, part.to_stride}, {},
                      context);
  }

 private:
  template <class A>
  static int64_t blocks_of(const LossRows<A>& losses) {
    return (losses.rows + kThreads - 1) / kThreads;
  }
  template <class A>
  static Total<A>* totals_of(const LossMemory<A>& memory) {
    return reinterpret_cast<Total<A>*>(memory.totals);
  }
};

}  // namespace
}  // namespace cuda

template <class T>
Status sum_logits_cuda(const LinearLogits& linear, const LossRows<compute_t<T>>& rows,
                       const LossMemory<compute_t<T>>& memory, const Context& context) {
  return sum_logits<T, cuda::Gpu>(linear, rows, memory, context);
}

template <class T>
Status differentiate_logits_cuda(const LossProducts& products, const LossGradient<compute_t<T>>& gradient,
                                 const Context& context) {
  return gradients_by_columns<T, cuda::Gpu>(products, gradient, context);
}

#define FUSEDOPS_INSTANTIATE(T)                                                          \
  template Status sum_logits_cuda<T>(const LinearLogits&, const LossRows<compute_t<T>>&, \
                                     const LossMemory<compute_t<T>>&, const Context&);   \
  template Status differentiate_logits_cuda<T>(const LossProducts&, const LossGradient<compute_t<T>>&, const Context&);
FUSEDOPS_INSTANTIATE(double)
FUSEDOPS_INSTANTIATE(float)
FUSEDOPS_INSTANTIATE(f16)
FUSEDOPS_INSTANTIATE(bf16)
#undef FUSEDOPS_INSTANTIATE

Status linear_cross_entropy_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kLinearCrossEntropy, "x")]->dtype, [&](auto tag) {
    return linear_cross_entropy_forward<typename decltype(tag)::type, cuda::Gpu>(call);
  });
}

Status linear_cross_entropy_backward_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kLinearCrossEntropyBackward, "x")]->dtype, [&](auto tag) {
    return linear_cross_entropy_gradient<typename decltype(tag)::type, cuda::Gpu>(call);
  });
}

}  // namespace fusedops
