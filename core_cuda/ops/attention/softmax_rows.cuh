// The kernel of softmax, for each kind of mask.
//
// Limit: memory bandwidth. Every element is read once, held in registers while its row is reduced, and written once. A
// row that fits neither a block nor a cluster is read twice, the second time mostly from L2.
#pragma once

#include "ops/attention/softmax_row.cuh"

namespace fusedops::cuda {

// A thread has 64 registers. Exponentials of doubles take 118 if the kernel loops over rows: the compiler grants them
// if the launch bounds allow one block of 512 threads per multiprocessor.
template <RowVariant kVariant, class T>
inline constexpr int kSoftmaxThreads = sizeof(T) == 8 && kVariant == RowVariant::cluster ? kRowThreads : kMaxRowThreads;

template <RowVariant kVariant, bool kAligned, class T, class Mask>
__global__ void __launch_bounds__((kSoftmaxThreads<kVariant, T>), 1)
    softmax_kernel(Softmax<T> call, Mask mask, RowGroups groups) {
  using A = compute_t<T>;
  begin_kernel();
  __shared__ A scratch[2][32];
  if constexpr (kVariant == RowVariant::many || kVariant == RowVariant::few) {
    const auto me = kVariant == RowVariant::few ? RowThread<>::half(groups) : RowThread<>(groups);
    SoftmaxRow<kVariant, kAligned, 0, T, Mask> row(call, mask, me, call.cols);
    row.load();
    row.finish(scratch, [](const MaxSum<A>& all) { return all; });
  } else {
    RowCluster cluster(groups);
    __shared__ MaxSum<A> of_blocks[2][kMaxCluster];
    const auto of_row = [&](const MaxSum<A>& of_block) {
      if (groups.cluster == 1) return of_block;
      return joined(cluster.gather(of_block, of_blocks), groups.cluster, call.factor);
    };
    if constexpr (kVariant == RowVariant::tiles) {
      const RowThread<> me(groups, groups.cluster_index());
      SoftmaxRow<kVariant, kAligned, 0, T, Mask>(call, mask, me, call.cols).finish_long(groups, scratch, of_row);
    } else {
      auto me = cluster.thread<T>();
      SoftmaxRow<kVariant, kAligned, kRowThreads, T, Mask> row(call, mask, me, groups.end(call.cols));
      cluster.each_row<kAligned>(me, call.rows, row, [&] { row.finish(scratch, of_row); });
    }
  }
}

template <bool kAligned, class T, class Mask>
Status launch_softmax(const Softmax<T>& call, const Mask& mask, const Context& context) {
  const auto run = [&](auto kernel, const Grid& grid, const RowGroups& groups) {
    return launch(context, kernel, grid, call, mask, groups);
  };
  const auto tiles = softmax_kernel<RowVariant::tiles, kAligned, T, Mask>;
  // For doubles, whose exponentials need many registers, one block of 1024 threads is faster than a cluster of two.
  constexpr int kMost = sizeof(T) == 8 ? kMaxRowThreads : kRowThreads;
  const RowGroups groups = block_or_cluster<T, packs_of(RowVariant::many)>(call.cols, kMost, tiles);
  switch (variant_of(groups, call.rows, call.cols)) {
    case RowVariant::many:
      return run(softmax_kernel<RowVariant::many, kAligned, T, Mask>, groups.grid(call.rows), groups);
    case RowVariant::few: {
      const RowGroups few = with_half_the_packs(groups);
      return run(softmax_kernel<RowVariant::few, kAligned, T, Mask>, few.grid(call.rows), few);
    }
    case RowVariant::cluster:
      return run(softmax_kernel<RowVariant::cluster, kAligned, T, Mask>,
                 cluster_grid(groups, call.rows, kAligned, NextRow<T, packs_of(RowVariant::cluster)>::kBytes), groups);
    default:
      return run(tiles, groups.grid(call.rows), groups);
  }
}

// softmax with a bias, which compiles apart: softmax_bias.cu.
Status biased_softmax(const Call& call);

template <class T, class Mask>
Status softmax_rows(const Softmax<T>& call, const Mask& mask, const Context& context) {
  const bool aligned = are_rows_aligned(call.cols, call.x, call.x_stride) && is_aligned(call.y);
  return aligned ? launch_softmax<true>(call, mask, context) : launch_softmax<false>(call, mask, context);
}

}  // namespace fusedops::cuda
