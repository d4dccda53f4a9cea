// bias_act and gated_act with a result in 8 bits.
//
// Limit: memory bandwidth; arithmetic for gelu, and for the second reading of long rows. A scale for each row needs the
// largest value of the row, so that a block holds the values of one in registers. A longer row is computed twice, the
// second time from the caches. Where no scale follows from a whole row, several blocks share a long one.
#include "core/cuda/float8.cuh"
#include "ops/activations/bias_act.h"
#include "ops/activations/gated_act.h"

namespace fusedops {
namespace cuda {
namespace {

// What a thread holds of a pack before it is computed: the loads of all packs are in flight at once.
template <class T>
struct BiasActPacks {
  using Element = T;
  struct Raw {
    Pack<T> x;
  };
  BiasAct<T> call;

  template <bool kAligned>
  __device__ Raw load(int64_t row, int64_t column, int64_t count) const {
    return {load_row_pack<kAligned>(call.x + row * call.x_stride + column, count)};
  }

  template <bool kAligned>
  __device__ void compute(const Raw& raw, int64_t column, int64_t count, compute_t<T> (&y)[kPackSize<T>]) const {
    compute_t<T> bias[kPackSize<T>];
    load_parameter<kAligned, T>(call.bias, column, count, kNoBias<T>, bias);
    activations::dispatch(call.activation, [&](auto activation) {
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) y[i] = decltype(activation)::at(sum(element(raw.x, i), bias[i])).value;
    });
  }
};

template <class T>
struct GatedActPacks {
  using Element = T;
  struct Raw {
    Pack<T> gate, up;
  };
  GatedAct<T> call;

  template <bool kAligned>
  __device__ Raw load(int64_t row, int64_t column, int64_t count) const {
    return {load_row_pack<kAligned>(call.gate + row * call.gate_stride + column, count),
            load_row_pack<kAligned>(call.up + row * call.up_stride + column, count)};
  }

  template <bool kAligned>
  __device__ void compute(const Raw& raw, int64_t, int64_t, compute_t<T> (&y)[kPackSize<T>]) const {
    activations::dispatch(call.activation, [&](auto activation) {
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i)
        y[i] = product(decltype(activation)::at(element(raw.gate, i)).value, element(raw.up, i));
    });
  }
};

constexpr int packs_of_thread(bool held) { return held ? 4 : 2; }

template <bool kAligned, bool kHeld, class Packs, class T = typename Packs::Element>
__global__ void __launch_bounds__(kRowThreads, 2)
    float8_rows_kernel(const __grid_constant__ Packs packs, const __grid_constant__ Float8Result<compute_t<T>> out,
                       const __grid_constant__ RowGroups groups) {
  begin_kernel();
  constexpr int kPacks = packs_of_thread(kHeld), kPack = kPackSize<T>;
  using A = compute_t<T>;
  using Index = std::conditional_t<kHeld, int, int64_t>;
  __shared__ A scratch[32];
  const RowThread<> me(groups, groups.cluster_index());
  const Index columns = static_cast<Index>(me.row < packs.call.rows ? packs.call.size : 0);
  const auto column = [&](Index tile, int p) { return static_cast<Index>(tile + me.template at<T>(p)); };
  const auto compute_tile = [&](Index tile, auto& y) {
    typename Packs::Raw raw[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      raw[p] = packs.template load<kAligned>(me.row, column(tile, p), columns - column(tile, p));
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      packs.template compute<kAligned>(raw[p], column(tile, p), columns - column(tile, p), y[p]);
  };
  const auto each_of = [&](Index tile, const auto& y, auto body) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) body(column(tile, p), columns - column(tile, p), y[p]);
  };
  const auto quantize = [&](auto each_pack) {
    quantize_row<kAligned, T>(out, me, packs.call.rows, groups.rank() == 0, scratch, each_pack,
                              [](A largest) { return largest; });
  };
  if constexpr (kHeld) {
    A y[kPacks][kPack];
    compute_tile(0, y);
    quantize([&](auto body) { each_of(0, y, body); });
  } else {
    quantize([&](auto body) {
      groups.each_tile(packs.call.size, [&](Index tile) {
        A y[kPacks][kPack];
        compute_tile(tile, y);
        each_of(tile, y, body);
      });
    });
  }
}

template <class T, bool kHeld>
RowGroups groups_of(int64_t size) {
  return row_groups<T, packs_of_thread(kHeld)>(size, kLeastBlockThreads, kRowThreads, kScaleThreads<T>);
}

template <class Packs, class A>
Status float8_rows(const Packs& packs, const Float8Result<A>& result, const Context& context, bool aligned) {
  using T = typename Packs::Element;
  const int64_t rows = packs.call.rows, size = packs.call.size;
  return quantize(context, result, [&](const Float8Result<A>& pass, bool) {
    const auto run = [&](auto kernel, const RowGroups& groups) {
      const int64_t blocks = std::max<int64_t>(groups.blocks(rows), 1);  // a tensor without elements has a scale, too
      return launch(context, kernel, blocks, groups.block_threads, packs, pass, groups);
    };
    constexpr bool kFast = sizeof(T) <= 4;  // float64 is not worth kernels of its own
    if constexpr (kFast) {
      const RowGroups held = groups_of<T, /*kHeld=*/true>(size);
      if (aligned && held.holds(size)) return run(float8_rows_kernel<true, true, Packs>, held);
    }
    RowGroups tiles = groups_of<T, /*kHeld=*/false>(size);
    const bool is_whole = pass.scaling == Scaling::row && !pass.given;
    if (!is_whole) {  // blocks that do not wait for each other, and that take the tiles of a row in turn
      constexpr int64_t kMost = 1024;
      tiles.cluster = static_cast<int>(std::bit_floor(uint64_t(std::clamp<int64_t>(size / tiles.tile, 1, kMost))));
    }
    if constexpr (kFast)
      if (aligned) return run(float8_rows_kernel<true, false, Packs>, tiles);
    return run(float8_rows_kernel<false, false, Packs>, tiles);
  });
}

}  // namespace
}  // namespace cuda

Status bias_act_float8_cuda(const Call& call) {
  constexpr BiasActPlaces kAt = kBiasActFloat8;
  return dispatch(call.inputs[kAt.x]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const BiasAct<T> of_type(call, kAt);
    const bool aligned = cuda::are_rows_aligned(of_type.size, of_type.x, of_type.x_stride) &&
                         cuda::is_aligned(of_type.y) && cuda::is_aligned(of_type.bias.data);
    return cuda::float8_rows(cuda::BiasActPacks<T>{of_type},
                             Float8Result<compute_t<T>>(call, kAt.float8, of_type.size, call.workspace), call.context,
                             aligned);
  });
}

Status gated_act_float8_cuda(const Call& call) {
  constexpr GatedActPlaces kAt = kGatedActFloat8;
  return dispatch(call.inputs[kAt.gate]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const GatedAct<T> of_type(call, kAt);
    const bool aligned = cuda::are_rows_aligned(of_type.size, of_type.gate, of_type.gate_stride) &&
                         cuda::are_rows_aligned(of_type.size, of_type.up, of_type.up_stride) &&
                         cuda::is_aligned(of_type.y);
    return cuda::float8_rows(cuda::GatedActPacks<T>{of_type},
                             Float8Result<compute_t<T>>(call, kAt.float8, of_type.size, call.workspace), call.context,
                             aligned);
  });
}

}  // namespace fusedops
