// Both norms with a result in 8 bits: the rows of norm_forward.cuh, which end in quantize_row().
//
// Aligned rows that registers hold have kernels of their own; every other row is read tile by tile, an element at a
// time, for each sum and for the result.
#pragma once

#include "core/cuda/float8.cuh"
#include "ops/normalization/norm_forward.cuh"

namespace fusedops::cuda {

template <bool kAligned, bool kCentered, RowVariant kVariant, int kThreads, class T>
class NormFloat8Row : public NormRow<kAligned, kCentered, /*kDropout=*/false, /*kMixed=*/true, kVariant, kThreads, T> {
  using Base = NormRow<kAligned, kCentered, false, true, kVariant, kThreads, T>;
  using Base::each, Base::kPack, Base::kPacks, Base::me_, Base::norm_;
  using typename Base::Index, typename Base::Partial;

 public:
  using typename Base::A;

  // Float8Result<A> beside what NormRow takes.
  template <class... Arguments>
  __device__ NormFloat8Row(const Float8Result<A>& out, const Arguments&... arguments) : Base(arguments...), out_(out) {}

  // The rest of the work, once the row is loaded. of_row(sum) turns the sum in this block into that over the row, and
  // max_of_row the largest value.
  template <class OfRow, class MaxOfRow>
  __device__ void quantize(A (&scratch)[3][32], A inverse_size, OfRow of_row, MaxOfRow max_of_row) {
    quantize_tiles([](auto body) { body(0, [] {}); }, scratch, inverse_size, of_row, max_of_row);
  }

  // All of the work for a row that is not held.
  template <class OfRow, class MaxOfRow>
  __device__ void quantize_long(const RowGroups& groups, A (&scratch)[3][32], A inverse_size, OfRow of_row,
                                MaxOfRow max_of_row) {
    quantize_tiles(
        [&](auto body) { groups.each_tile(norm_.cols, [&](Index tile) { body(tile, [&] { Base::load(tile); }); }); },
        scratch, inverse_size, of_row, max_of_row);
  }

 private:
  template <class ForTiles, class OfRow, class MaxOfRow>
  __device__ void quantize_tiles(ForTiles for_tiles, A (&scratch)[3][32], A inverse_size, OfRow of_row,
                                 MaxOfRow max_of_row) {
    Base::normalize_tiles(
        inverse_size, for_tiles,
        [&](const Partial& sums, int which) { return of_row(Base::row_sum(sums, scratch[which])); },
        [&](auto for_tiles, A mean, A rstd) { finish(for_tiles, mean, rstd, scratch[2], max_of_row); });
  }

  // Computed values take twice the registers of 16-bit ones: a block that also prefetches its next row has none left,
  // and computes them again for each pass.
  template <class ForTiles, class MaxOfRow>
  __device__ void finish(ForTiles for_tiles, A mean, A rstd, A (&scratch)[32], MaxOfRow max_of_row) {
    const A offset = Base::offset_of_weight();
    const auto quantize = [&](auto each_pack) {
      quantize_row<kAligned, T>(out_, me_, norm_.rows, Base::is_first_block_, scratch, each_pack, max_of_row);
    };
    if constexpr (kVariant == RowVariant::many) {
      A y[kPacks][kPack];
      each(0, [&](int p, Index at, Index count) { Base::compute(p, at, count, mean, rstd, offset, y[p]); });
      quantize([&](auto body) { each(0, [&](int p, Index at, Index count) { body(column(at), count, y[p]); }); });
    } else {
      quantize([&](auto body) {
        for_tiles([&](Index tile, auto load) {
          load();
          each(tile, [&](int p, Index at, Index count) {
            A y[kPack];
            Base::compute(p, at, count, mean, rstd, offset, y);
            body(column(at), count, y);
          });
        });
      });
    }
  }

  // Of a place that counts from the thread's first column.
  __device__ Index column(Index at) const { return at + me_.template at<T>(0); }

  const Float8Result<A>& out_;
};

template <bool kAligned, bool kCentered, RowVariant kVariant, int kThreads, class T>
__global__ void __maxnreg__((kNormRegisters<kAligned, kVariant>))
    norm_float8_kernel(const __grid_constant__ NormForward<T> norm,
                       const __grid_constant__ Float8Result<compute_t<T>> out, const __grid_constant__ RowGroups groups,
                       compute_t<T> inverse_size) {
  begin_kernel();
  using A = compute_t<T>;
  using Row = NormFloat8Row<kAligned, kCentered, kVariant, kThreads, T>;
  const auto larger_one = [](A a, A b) { return larger(a, b); };
  __shared__ A scratch[3][32];
  if constexpr (kVariant == RowVariant::many) {
    const RowThread<kThreads> me(groups);
    Row row(out, norm, me, norm.cols);
    row.load();
    const auto itself = [](A value) { return value; };
    row.quantize(scratch, inverse_size, itself, itself);
  } else {
    RowCluster cluster(groups);
    __shared__ A of_blocks[2][kMostCluster];
    const auto sum_of_row = [&](A sum) { return cluster.sum(sum, of_blocks); };
    const auto max_of_row = [&](A value) { return cluster.combined(value, of_blocks, larger_one); };
    if constexpr (kVariant == RowVariant::cluster) {
      RowThread<kThreads> me = cluster.thread<T>();
      Row row(out, norm, me, groups.end(norm.cols), groups.rank() == 0);
      row.prefetch_parameters();
      cluster.each_row<kAligned>(me, norm.rows, row,
                                 [&] { row.quantize(scratch, inverse_size, sum_of_row, max_of_row); });
    } else {
      const RowThread<kThreads> me(groups, groups.cluster_index());
      Row(out, norm, me, groups.end(norm.cols), groups.rank() == 0)
          .quantize_long(groups, scratch, inverse_size, sum_of_row, max_of_row);
    }
  }
}

// For many aligned rows: a kernel that knows the number of threads of a row, for the lengths that models have.
template <bool kCentered, class T>
auto norm_float8_kernel_for(int threads) {
  constexpr RowVariant kMany = RowVariant::many;
  if constexpr (sizeof(T) == 2) {
    if (threads == 512) return norm_float8_kernel<true, kCentered, kMany, 512, T>;
    if (threads == 256) return norm_float8_kernel<true, kCentered, kMany, 256, T>;
  }
  return norm_float8_kernel<true, kCentered, kMany, 0, T>;
}

template <bool kCentered, class T>
Status norm_float8_pass(const NormForward<T>& norm, const Float8Result<compute_t<T>>& out, const Context& context) {
  using A = compute_t<T>;
  constexpr bool kFast = sizeof(T) <= 4;  // float64 is not worth kernels of its own
  const bool aligned = kFast && are_rows_aligned(norm.cols, norm.x, norm.x_stride) &&
                       are_rows_aligned(norm.cols, norm.residual, norm.residual_stride) && is_aligned(out.y) &&
                       is_aligned(norm.s) && is_aligned(norm.weight.data) && is_aligned(norm.bias.data);
  const auto run = [&](auto kernel, Grid grid, const RowGroups& groups) {
    grid.blocks = std::max<int64_t>(grid.blocks, groups.cluster);  // a tensor without elements has a scale, too
    return launch(context, kernel, grid, norm, out, groups, A(1) / static_cast<A>(norm.cols));
  };
  const auto tiles = norm_float8_kernel<false, kCentered, RowVariant::tiles, 0, T>;
  const RowGroups groups = block_or_cluster<T, packs_of(RowVariant::tiles)>(norm.cols, kRowThreads, tiles, kScaleBlock);
  if constexpr (kFast) {
    constexpr RowVariant kCluster = RowVariant::cluster;
    if (aligned && groups.holds(norm.cols) && groups.cluster == 1)
      return run(norm_float8_kernel_for<kCentered, T>(groups.threads), groups.grid(norm.rows), groups);
    if (aligned && groups.holds(norm.cols)) {
      const int next_row_bytes = NextRow<T, packs_of(kCluster)>::kBytes * (norm.residual ? 2 : 1);
      return run(norm_float8_kernel<true, kCentered, kCluster, kRowThreads, T>,
                 cluster_grid(groups, norm.rows, aligned, next_row_bytes), groups);
    }
  }
  return run(tiles, groups.grid(norm.rows), groups);
}

template <bool kCentered>
Status norm_float8(const Call& call, const NormForwardPlaces& places) {
  return dispatch(call.inputs[places.x]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    NormForward<T> norm(call, places);
    const Float8Result<compute_t<T>> result(call, places.float8, norm.cols, call.workspace);
    return quantize(call.context, result, [&](const Float8Result<compute_t<T>>& pass, bool is_last) {
      // The first of two passes has written the sum: the second has nothing to add.
      if (is_last && result.is_of_all() && norm.residual)
        norm.x = norm.s, norm.x_stride = norm.cols, norm.residual = nullptr;
      return norm_float8_pass<kCentered>(norm, pass, call.context);
    });
  });
}

}  // namespace fusedops::cuda
