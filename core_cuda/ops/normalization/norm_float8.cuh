// Both norms with 8-bit results: the rows of norm_forward.cuh, followed by quantize_row().
//
// Aligned rows that registers hold have specialized kernels, with parameters of x's dtype or of any. All other rows are
// read tile by tile, one element at a time, for each sum and for the result.
#pragma once

#include "core/cuda/float8.cuh"
#include "ops/normalization/norm_forward.cuh"

namespace fusedops::cuda {

// kPlain: the parameters are given in x's 16-bit dtype.
template <bool kAligned, bool kCentered, bool kPlain, RowVariant kVariant, int kThreads, class T>
class NormFloat8Row : public NormRow<kAligned, kCentered, /*kDropout=*/false, !kPlain, kVariant, kThreads, T> {
  using Base = NormRow<kAligned, kCentered, false, !kPlain, kVariant, kThreads, T>;
  using Base::each, Base::kPack, Base::kPacks, Base::me_, Base::norm_;
  using typename Base::Index, typename Base::Partial;

 public:
  using typename Base::A;

  // Arguments: a Float8Result<A>, then those of NormRow.
  template <class... Arguments>
  __device__ NormFloat8Row(const Float8Result<A>& out, const Arguments&... arguments) : Base(arguments...), out_(out) {}

  // Prefetches a later row into the L2 cache, which takes no register and keeps memory busy while the blocks compute. A
  // thread's packs are 64 bytes, so every other thread prefetches a line of 128.
  __device__ void prefetch_later(int rows) const {
    const int64_t row = me_.row + (out_.is_second_pass() ? -rows : rows), column = me_.index * (kPacks * kPack);
    if (row < 0 || row >= norm_.rows || me_.index % 2 != 0 || column >= norm_.cols) return;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(norm_.x + row * norm_.x_stride + column));
  }

  // Processes a row after load(). of_row(sum) and max_of_row(value) reduce a block's result to that of the whole row.
  template <class OfRow, class MaxOfRow>
  __device__ void quantize(A (&scratch)[3][32], A inverse_size, OfRow of_row, MaxOfRow max_of_row) {
    quantize_tiles([](auto body) { body(0, [] {}); }, scratch, inverse_size, of_row, max_of_row);
  }

  // Processes a row that is not held.
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

  template <class ForTiles, class MaxOfRow>
  __device__ void finish(ForTiles for_tiles, A mean, A rstd, A (&scratch)[32], MaxOfRow max_of_row) {
    const A offset = Base::offset_of_weight();
    const auto compute = [&](Index tile, A(&y)[kPacks][kPack]) {
      if constexpr (kPlain)
        compute_plain(mean, rstd, offset, y);
      else
        each(tile, [&](int p, Index at, Index count) { Base::compute(p, at, count, mean, rstd, offset, y[p]); });
    };
    const auto quantize = [&](auto each_tile) {
      quantize_row<kAligned, T>(out_, me_, norm_.rows, Base::is_first_block_, scratch, each_tile, max_of_row);
    };
    A y[kPacks][kPack];
    if constexpr (kVariant == RowVariant::tiles) {
      quantize([&](auto body) {
        for_tiles([&](Index tile, auto load) {
          load();
          compute(tile, y);
          body(y, places(tile));
        });
      });
    } else {
      compute(0, y);
      quantize([&](auto body) { body(y, places(0)); });
    }
  }

  // Loads all parameters together: behind branches, each pack would wait for its own.
  __device__ void compute_plain(A mean, A rstd, A offset, A (&y)[kPacks][kPack]) {
    Pack<T> weights[kPacks], biases[kPacks];
    const T* weight_row = static_cast<const T*>(norm_.weight.data) + me_.template at<T>(0);
    const T* bias_row = static_cast<const T*>(norm_.bias.data) + me_.template at<T>(0);
    each(0, [&](int p, Index at, Index count) {
      weights[p] = load_row_pack<kAligned>(weight_row + at, count);
      if constexpr (kCentered) biases[p] = load_row_pack<kAligned>(bias_row + at, count);
    });
    const auto normalize = [&](auto weight) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
        Base::normalize_pack(
            p, mean, rstd, [&](int i) { return weight(element(weights[p], i)); },
            [&](int i) { return element(biases[p], i); }, y[p]);
    };
    if constexpr (kCentered) {
      normalize([](A w) { return w; });
    } else if (offset == 0) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) add_zero(weights[p]);
      normalize([](A w) { return w; });
    } else {
      normalize([&](A w) { return w + offset; });
    }
  }

  // Two elements at a time; only negative zeros change.
  static __device__ void add_zero(Pack<T>& pack) {
    using Pair = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;
    Pair* pairs = reinterpret_cast<Pair*>(&pack);
#pragma unroll
    for (int i = 0; i < kPack / 2; ++i) pairs[i] = __hadd2(pairs[i], Pair{});
  }

  __device__ PackPlaces<Index> places(Index tile) const {
    const Index before = me_.template at<T>(0);
    return {tile + before, (kThreads ? kThreads : me_.threads) * kPack, before + Base::columns_};
  }

  const Float8Result<A>& out_;
};

template <bool kAligned, bool kCentered, bool kPlain, RowVariant kVariant, int kThreads, class T>
__global__ void __maxnreg__((kNormRegisters<kAligned, kVariant>))
    norm_float8_kernel(const __grid_constant__ NormForward<T> norm,
                       const __grid_constant__ Float8Result<compute_t<T>> out, const __grid_constant__ RowGroups groups,
                       compute_t<T> inverse_size, int rows_at_once) {
  begin_kernel();
  using A = compute_t<T>;
  using Row = NormFloat8Row<kAligned, kCentered, kPlain, kVariant, kThreads, T>;
  __shared__ A scratch[3][32];
  if constexpr (kVariant == RowVariant::many) {
    const int block = out.is_second_pass() ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    RowThread<kThreads> me(groups, block);
    if constexpr (kThreads >= kMinBlockThreads) me.row = block, me.index = threadIdx.x;  // uniform to the compiler
    Row row(out, norm, me, norm.cols);
    row.load();
    if (!norm.residual) row.prefetch_later(rows_at_once);  // a residual leaves less to compute per byte
    const auto itself = [](A value) { return value; };
    row.quantize(scratch, inverse_size, itself, itself);
  } else {
    RowCluster cluster(groups);
    __shared__ A of_blocks[2][kMaxCluster];
    const auto sum_of_row = [&](A sum) { return cluster.sum(sum, of_blocks); };
    const auto max_of_row = [&](A value) {
      return cluster.combined(value, of_blocks, [](A a, A b) { return larger(a, b); });
    };
    if constexpr (kVariant == RowVariant::cluster) {
      RowThread<kThreads> me = cluster.thread<T>();
      Row row(out, norm, me, groups.end(norm.cols), groups.rank() == 0);
      row.prefetch_parameters();
      cluster.each_row<kAligned>(me, norm.rows, row, [&] {
        // Keeps the compiler from hoisting the parameters, which would take the registers of the values.
        asm volatile("" : "+r"(me.index));
        row.quantize(scratch, inverse_size, sum_of_row, max_of_row);
      });
    } else {
      const RowThread<kThreads> me(groups, groups.cluster_index());
      Row(out, norm, me, groups.end(norm.cols), groups.rank() == 0)
          .quantize_long(groups, scratch, inverse_size, sum_of_row, max_of_row);
    }
  }
}

// Kernels for held rows. For many rows of common lengths, the number of threads per row is a compile-time constant.
template <bool kCentered, bool kPlain, class T>
auto norm_float8_kernel_for(const RowGroups& groups) {
  constexpr RowVariant kMany = RowVariant::many;
  if (groups.cluster > 1) return norm_float8_kernel<true, kCentered, kPlain, RowVariant::cluster, kRowThreads, T>;
  if constexpr (kPlain) {
    if (groups.threads == 512) return norm_float8_kernel<true, kCentered, true, kMany, 512, T>;
    if (groups.threads == 256) return norm_float8_kernel<true, kCentered, true, kMany, 256, T>;
  }
  return norm_float8_kernel<true, kCentered, kPlain, kMany, 0, T>;
}

template <bool kCentered, class T>
Status norm_float8_pass(const NormForward<T>& norm, const Float8Result<compute_t<T>>& out, const Context& context) {
  using A = compute_t<T>;
  constexpr bool kFast = sizeof(T) <= 4;  // float64 has no specialized kernels
  const bool aligned = kFast && are_rows_aligned(norm.cols, norm.x, norm.x_stride) &&
                       are_rows_aligned(norm.cols, norm.residual, norm.residual_stride) && is_aligned(out.y) &&
                       is_aligned(norm.s) && is_aligned(norm.weight.data) && is_aligned(norm.bias.data);
  const auto run = [&](auto kernel, Grid grid, const RowGroups& groups) {
    grid.blocks = std::max<int64_t>(grid.blocks, groups.cluster);  // an empty tensor has a scale, too
    const int blocks_at_once = device_attribute(cudaDevAttrMultiProcessorCount) * 2 * kRowThreads / grid.threads;
    return launch(context, kernel, grid, norm, out, groups, A(1) / static_cast<A>(norm.cols),
                  blocks_at_once * groups.rows_per_block);
  };
  const auto tiles = norm_float8_kernel<false, kCentered, false, RowVariant::tiles, 0, T>;
  const RowGroups groups = block_or_cluster<T, packs_of(RowVariant::tiles)>(norm.cols, kRowThreads, tiles, kScaleBlock);
  if constexpr (kFast) {
    // float32 rows leave time to wait for the parameters.
    const auto is_plain = [](const Parameter& parameter) { return parameter.data && !parameter.is_f32; };
    const bool plain = is_plain(norm.weight) && (!kCentered || is_plain(norm.bias));
    if (aligned && groups.holds(norm.cols)) {
      const bool is_persistent = groups.cluster > 1 && !norm.residual;  // two next rows leave too little shared memory
      return run(plain ? norm_float8_kernel_for<kCentered, sizeof(T) == 2, T>(groups)
                       : norm_float8_kernel_for<kCentered, false, T>(groups),
                 is_persistent
                     ? cluster_grid(groups, norm.rows, aligned, NextRow<T, packs_of(RowVariant::cluster)>::kBytes)
                     : groups.grid(norm.rows),
                 groups);
    }
  }
  return run(tiles, groups.grid(norm.rows), groups);
}

template <const Signature& kOp>
Status norm_float8(const Call& call) {
  return dispatch(call.inputs[input_of(kOp, "x")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    NormForward<T> norm = norm_forward_of<kOp, T>(call);
    const Float8Result<compute_t<T>> result(call, float8_places(kOp), norm.cols, call.workspace);
    return quantize(call.context, result, [&](const Float8Result<compute_t<T>>& pass, bool is_last) {
      // The first of two passes has stored the sum, so the second adds nothing.
      if (is_last && result.has_tensor_scale() && norm.residual)
        norm.x = norm.s, norm.x_stride = norm.cols, norm.residual = nullptr;
      return norm_float8_pass<kIsCentered<kOp>>(norm, pass, call.context);
    });
  });
}

}  // namespace fusedops::cuda
