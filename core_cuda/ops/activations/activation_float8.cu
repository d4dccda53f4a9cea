// bias_act and gated_act with 8-bit results.
//
// Limit: memory bandwidth; the instruction rate for gelu. A scale per row needs the row's largest value, so a block
// holds a row in registers, or, for 16-bit inputs, a cluster of blocks. A longer row is computed twice, the second time
// from the caches. If no scale depends on a whole row, several blocks share it.
#include "core/cuda/float8.cuh"
#include "ops/activations/bias_act.h"
#include "ops/activations/gated_act.h"

namespace fusedops {
namespace cuda {
namespace {

// The inputs of each operator: the packs that a thread loads together, and the values computed from them.
template <class T>
struct BiasActPacks {
  using Element = T;
  static constexpr int kTensors = 1;
  BiasAct<T> call;

  __device__ const T* row(int, int64_t row) const { return call.x + row * call.x_stride; }

  // y = the argument of the activation.
  template <bool kAligned, int kPacks, class Index>
  __device__ void prepare(const Pack<T> (&raw)[kPacks][kTensors], const PackPlaces<Index>& at,
                          compute_t<T> (&y)[kPacks][kPackSize<T>]) const {
    if (call.bias.data && call.bias.is_f32 == (sizeof(T) == 4)) {  // all loads are issued together
      Pack<T> bias[kPacks];
      const T* data = static_cast<const T*>(call.bias.data) + at.first;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) bias[p] = load_row_pack<kAligned>(data + p * at.step, at.count(p));
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
#pragma unroll
        for (int i = 0; i < kPackSize<T>; ++i) y[p][i] = sum(element(raw[p][0], i), element(bias[p], i));
      return;
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      compute_t<T> bias[kPackSize<T>];
      load_parameter<kAligned, T>(call.bias, at.column(p), at.count(p), kNoBias<T>, bias);
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) y[p][i] = sum(element(raw[p][0], i), bias[i]);
    }
  }

  template <class Activation>
  __device__ void activate(const Pack<T> (&)[kTensors], compute_t<T> (&y)[kPackSize<T>]) const {
#pragma unroll
    for (int i = 0; i < kPackSize<T>; ++i) y[i] = Activation::at(y[i]).value;
  }
};

template <class T>
struct GatedActPacks {
  using Element = T;
  static constexpr int kTensors = 2;
  GatedAct<T> call;

  __device__ const T* row(int tensor, int64_t row) const {
    return tensor == 0 ? call.gate + row * call.gate_stride : call.up + row * call.up_stride;
  }

  template <bool kAligned, int kPacks, class Index>
  __device__ void prepare(const Pack<T> (&)[kPacks][kTensors], const PackPlaces<Index>&,
                          compute_t<T> (&)[kPacks][kPackSize<T>]) const {}

  template <class Activation>
  __device__ void activate(const Pack<T> (&raw)[kTensors], compute_t<T> (&y)[kPackSize<T>]) const {
#pragma unroll
    for (int i = 0; i < kPackSize<T>; ++i) y[i] = product(Activation::at(element(raw[0], i)).value, element(raw[1], i));
  }
};

constexpr int packs_of_thread(RowVariant variant) { return variant == RowVariant::tiles ? 2 : 4; }

template <bool kAligned, RowVariant kVariant, class Packs, class T = typename Packs::Element>
__global__ void __launch_bounds__(kRowThreads, 2)
    float8_rows_kernel(const __grid_constant__ Packs packs, const __grid_constant__ Float8Result<compute_t<T>> out,
                       const __grid_constant__ RowGroups groups) {
  begin_kernel();
  constexpr int kPacks = packs_of_thread(kVariant), kPack = kPackSize<T>;
  constexpr int kThreads = kVariant == RowVariant::cluster ? kRowThreads : 0;
  using A = compute_t<T>;
  using Index = std::conditional_t<kVariant == RowVariant::tiles, int64_t, int>;
  __shared__ A scratch[32];
  const int last = gridDim.x - 1, block = out.is_second_pass() ? last - blockIdx.x : blockIdx.x;
  const RowThread<kThreads> me(groups, kVariant == RowVariant::many ? block : block >> (__ffs(groups.cluster) - 1));
  const Index columns = static_cast<Index>(me.row < packs.call.rows ? groups.end(packs.call.size) : 0);
  A y[kPacks][kPack];
  const auto compute_tile = [&](Index tile) {
    const PackPlaces<Index> at{static_cast<Index>(tile + me.template at<T>(0)),
                               static_cast<Index>((kThreads ? kThreads : me.threads) * kPack), columns};
    Pack<T> raw[kPacks][Packs::kTensors];
#pragma unroll
    for (int tensor = 0; tensor < Packs::kTensors; ++tensor) {
      const T* from = packs.row(tensor, me.row) + at.first;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) raw[p][tensor] = load_row_pack<kAligned>(from + p * at.step, at.count(p));
    }
    packs.template prepare<kAligned>(raw, at, y);
    activations::dispatch(packs.call.activation, [&](auto activation) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) packs.template activate<decltype(activation)>(raw[p], y[p]);
    });
    return at;
  };
  const auto quantize = [&](auto each_tile, auto max_of_row) {
    quantize_row<kAligned, T>(out, me, packs.call.rows, groups.rank() == 0, scratch, each_tile, max_of_row);
  };
  const auto itself = [](A largest) { return largest; };
  if constexpr (kVariant == RowVariant::tiles) {
    quantize([&](auto body) { groups.each_tile(packs.call.size, [&](Index tile) { body(y, compute_tile(tile)); }); },
             itself);
  } else if constexpr (kVariant == RowVariant::cluster) {
    RowCluster cluster(groups);
    __shared__ A of_blocks[2][kMaxCluster];
    const auto at = compute_tile(static_cast<Index>(groups.first()));
    quantize([&](auto body) { body(y, at); },
             [&](A largest) { return cluster.combined(largest, of_blocks, [](A a, A b) { return larger(a, b); }); });
  } else {
    const auto at = compute_tile(0);
    quantize([&](auto body) { body(y, at); }, itself);
  }
}

template <class Packs, class A>
Status float8_rows(const Packs& packs, const Float8Result<A>& result, const Context& context, bool aligned) {
  using T = typename Packs::Element;
  constexpr RowVariant kMany = RowVariant::many, kCluster = RowVariant::cluster, kTiles = RowVariant::tiles;
  const int64_t rows = packs.call.rows, size = packs.call.size;
  return quantize(context, result, [&](const Float8Result<A>& pass, bool) {
    const auto run = [&](auto kernel, const RowGroups& groups, int cluster = 1) {
      // At least one cluster: an empty tensor has a scale, too.
      const int64_t blocks = std::max<int64_t>(groups.blocks(rows), groups.cluster);
      return launch(context, kernel, Grid{blocks, groups.block_threads, 0, cluster}, packs, pass, groups);
    };
    constexpr bool kFast = sizeof(T) <= 4;  // float64 has no specialized kernels
    if constexpr (kFast) {
      const RowGroups held = block_or_cluster<T, packs_of_thread(kMany)>(
          size, kRowThreads, float8_rows_kernel<true, kMany, Packs>, kScaleBlock);
      if (aligned && held.holds(size) && held.cluster == 1) return run(float8_rows_kernel<true, kMany, Packs>, held);
      if constexpr (sizeof(T) == 2)
        if (aligned && held.holds(size)) return run(float8_rows_kernel<true, kCluster, Packs>, held, held.cluster);
    }
    RowGroups tiles = row_groups<T, packs_of_thread(kTiles)>(size, kMinBlockThreads, kRowThreads, kScaleThreads<T>);
    const bool is_whole = pass.scaling == Scaling::row && !pass.given;
    if (!is_whole) {  // independent blocks, which take the tiles of a row in turn
      constexpr int64_t kMost = 1024;
      tiles.cluster = static_cast<int>(std::bit_floor(uint64_t(std::clamp<int64_t>(size / tiles.tile, 1, kMost))));
    }
    if constexpr (kFast)
      if (aligned) return run(float8_rows_kernel<true, kTiles, Packs>, tiles);
    return run(float8_rows_kernel<false, kTiles, Packs>, tiles);
  });
}

}  // namespace
}  // namespace cuda

Status bias_act_float8_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kBiasActFloat8, "x")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const BiasAct<T> of_type = bias_act_of<kBiasActFloat8, T>(call);
    const bool aligned = cuda::are_rows_aligned(of_type.size, of_type.x, of_type.x_stride) &&
                         cuda::is_aligned(of_type.y) && cuda::is_aligned(of_type.bias.data);
    return cuda::float8_rows(
        cuda::BiasActPacks<T>{of_type},
        Float8Result<compute_t<T>>(call, float8_places(kBiasActFloat8), of_type.size, call.workspace), call.context,
        aligned);
  });
}

Status gated_act_float8_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kGatedActFloat8, "gate")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const GatedAct<T> of_type = gated_act_of<kGatedActFloat8, T>(call);
    const bool aligned = cuda::are_rows_aligned(of_type.size, of_type.gate, of_type.gate_stride) &&
                         cuda::are_rows_aligned(of_type.size, of_type.up, of_type.up_stride) &&
                         cuda::is_aligned(of_type.y);
    return cuda::float8_rows(
        cuda::GatedActPacks<T>{of_type},
        Float8Result<compute_t<T>>(call, float8_places(kGatedActFloat8), of_type.size, call.workspace), call.context,
        aligned);
  });
}

}  // namespace fusedops
