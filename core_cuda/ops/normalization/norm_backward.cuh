// The backward of both norms: dx row by row, and the gradients of weight and bias, in one pass over dy and x.
//
// Limit: memory bandwidth; two tensors are read and one is written. A block has a slab of rows, keeps the
// sums of its columns in registers, and each thread prefetches its elements of the rows to come. The slabs' sums are
// added by a second, small kernel, in a fixed order. The forward's statistics save another pass over x.
#pragma once

#include "core/cuda/reduce.cuh"
#include "ops/normalization/norm_backward_block.cuh"

namespace fusedops::cuda {

template <bool kAligned, bool kCentered, bool kDropout, bool kMixed, int kTensors, class T>
__global__ void __launch_bounds__(kNormBackwardThreads)
    norm_backward_kernel(const __grid_constant__ NormBackward<T> norm, const __grid_constant__ NormBackwardPlan plan) {
  begin_kernel();
  extern __shared__ int4 memory[];
  NormBackwardBlock<kAligned, kCentered, kDropout, kMixed, kTensors, T>(norm, plan, reinterpret_cast<char*>(memory))
      .run();
}

// The sums of rows that are too long for a block to hold. The rows are read here, and again by the kernel above.
template <bool kAligned, bool kCentered, class T>
__global__ void __launch_bounds__(kMostRowThreads) norm_row_sums_kernel(NormBackward<T> norm, RowGroups groups) {
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
Status launch_norm_backward(const NormBackward<T>& norm, const Context& context) {
  using Block = NormBackwardBlock<kAligned, kCentered, kDropout, kMixed, kTensors, T>;
  NormBackwardPlan plan;
  plan.groups = norm_backward_groups<T>(norm.cols);
  plan.step_rows = plan.groups.rows_per_block * Block::kDepth;
  plan.slabs = slabs_of(norm.rows, plan.step_rows);
  plan.column_tiles = (norm.cols + plan.groups.tile - 1) / plan.groups.tile;
  plan.steps = static_cast<int>(plan.slabs.rows / plan.step_rows);
  const int side_sums_bytes = plan.groups.rows_per_block > 1
                                  ? plan.groups.block_threads * Block::kPacks * kPackSize<T> * int(sizeof(compute_t<T>))
                                  : 0;
  const int shared_bytes = (kAligned ? Block::Rows::kBytes : 0) + side_sums_bytes;
  if constexpr (kAligned)  // GPUs other than 9.0 and 10.0 have less: the same bits, without prefetching
    if (shared_bytes + kDeclaredShared > device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin))
      return launch_norm_backward<false, kCentered, kDropout, true, kTensors>(norm, context);
  if (plan.column_tiles > 1)
    FUSEDOPS_TRY(launch(context, norm_row_sums_kernel<kAligned, kCentered, T>, norm.rows, kMostRowThreads, norm,
                        row_groups<T, 1>(norm.cols, kMostRowThreads)));
  const int64_t blocks =
      std::min<int64_t>(plan.slabs.count * plan.column_tiles, device_attribute(cudaDevAttrMultiProcessorCount));
  return launch(context, norm_backward_kernel<kAligned, kCentered, kDropout, kMixed, kTensors, T>,
                Grid{blocks, kNormBackwardThreads, shared_bytes}, norm, plan);
}

template <bool kAligned, bool kCentered, bool kDropout, bool kMixed, class T>
Status norm_backward_with_or_without_ds(const NormBackward<T>& norm, const Context& context) {
  return norm.ds ? launch_norm_backward<kAligned, kCentered, kDropout, kMixed, 3>(norm, context)
                 : launch_norm_backward<kAligned, kCentered, kDropout, kMixed, 2>(norm, context);
}

template <bool kCentered, bool kDropout, class T>
Status norm_backward(const NormBackward<T>& norm, const Context& context) {
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
  const int64_t slabs =
      slabs_of(norm.rows, norm_backward_groups<T>(norm.cols).rows_per_block * kNormBackwardDepth<T>).count;
  const A* rest = norm.partials;
  if (norm.need_dweight && norm.need_dbias && norm.dweight.dtype == norm.dbias.dtype)
    return sum_slabs(context, rest, slabs, norm.cols, norm.dweight, &norm.dbias);
  if (norm.need_dweight) FUSEDOPS_TRY(sum_slabs(context, rest, slabs, norm.cols, norm.dweight));
  if (norm.need_dweight) rest += slabs * norm.cols;
  return norm.need_dbias ? sum_slabs(context, rest, slabs, norm.cols, norm.dbias) : Status();
}

}  // namespace fusedops::cuda
