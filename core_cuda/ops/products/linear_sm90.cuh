// A product with an epilogue, of 16 bits on compute capability 9.x: c = activation(sum + bias), rounded once. Limit:
// the tensor cores.
//
// Both warpgroups have tiles of their own, of 128 x 128, and take turns: while one computes its activations, about as
// long as a tenth of a product of depth 4096, the other multiplies. With one tile of 128 x 256 for both, as matmul has
// it, the tensor cores would wait meanwhile.
#pragma once

#include "core/common/activations.h"
#include "ops/products/matmul_sm90.cuh"

namespace fusedops::cuda {

using LinearTile = cute::Shape<cute::_128, cute::_128, cute::_64>;

// The activation of an epilogue, as an operation of CUTLASS's on a fragment of the sums.
struct ActivationArgument {
  int index;
};

template <class Fragment>
struct Activate {
  using Arguments = ActivationArgument;

  CUTLASS_DEVICE Fragment operator()(Fragment x, Arguments activation) const {
    activations::dispatch(activation.index, [&](auto chosen) {
#pragma unroll
      for (int i = 0; i < Fragment::kElements; ++i) x[i] = decltype(chosen)::at(x[i]).value;
    });
    return x;
  }
};

// c = activation(z) with z = sum + bias, which is stored too if it is wanted: the tree of CUTLASS's epilogue visitors.
template <class T>
struct LinearFusion {
  static constexpr auto kRounding = cutlass::FloatRoundStyle::round_to_nearest;
  using Schedule = cutlass::epilogue::TmaWarpSpecialized;
  using Tile = cutlass::epilogue::collective::detail::EpilogueDescriptor<
      LinearTile, cutlass::epilogue::collective::EpilogueTileAuto, void, T, Schedule>;
  using OfZ = cutlass::epilogue::collective::detail::AuxStoreDescriptor<Tile, RowMajor, T>;
  using Bias = cutlass::epilogue::fusion::Sm90RowBroadcast<0, LinearTile, T, float>;
  using Add = cutlass::epilogue::fusion::Sm90Compute<cutlass::plus, float, float, kRounding>;
  using StoreZ = cutlass::epilogue::fusion::Sm90AuxStore<OfZ::Stages, typename OfZ::EpilogueTile, T, kRounding,
                                                         typename OfZ::Stride, typename OfZ::SmemLayoutAtom,
                                                         typename OfZ::CopyOpR2S>;
  using Act = cutlass::epilogue::fusion::Sm90Compute<Activate, T, float, kRounding>;
  template <class... Nodes>
  using Tree = cutlass::epilogue::fusion::Sm90EVT<Nodes...>;
  using Callbacks = Tree<Act, Tree<StoreZ, Tree<Add, cutlass::epilogue::fusion::Sm90AccFetch, Bias>>>;
};

template <class T>
using LinearEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, LinearTile, Sm90Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, RowMajor, kTmaAlignment<T>, T, RowMajor,
    kTmaAlignment<T>, typename LinearFusion<T>::Schedule, typename LinearFusion<T>::Callbacks>::CollectiveOp;

template <class T>
inline constexpr int kLinearEpilogueBytes = sizeof(typename LinearEpilogue<T>::SharedStorage);

template <class T, class LayoutB>
using LinearMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, T, RowMajor, kTmaAlignment<T>, T, LayoutB, kTmaAlignment<T>,
    float, LinearTile, Sm90Cluster, cutlass::gemm::collective::StageCountAutoCarveout<kLinearEpilogueBytes<T>>,
    cutlass::gemm::KernelTmaWarpSpecializedPingpong>::CollectiveOp;

template <class T, class LayoutB>
Status launch_linear_sm90(const Matmul& product, const Context& context) {
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, LinearMainloop<T, LayoutB>,
                                                      LinearEpilogue<T>>;
  const Epilogue& epilogue = product.epilogue;
  const auto stride_c = sm90_stride<typename Kernel::StrideD>(product.n, 0);
  const T no_bias(-0.0f);  // leaves every sum as it is, even -0
  return run_sm90<Kernel>(
      {int(product.m), int(product.n), int(product.k), 1},
      {static_cast<const T*>(product.a.data), sm90_stride<typename Kernel::StrideA>(product.a.stride, 0),
       static_cast<const T*>(product.b.data), sm90_stride<typename Kernel::StrideB>(product.b.stride, 0)},
      {{{{{}, {static_cast<const T*>(epilogue.bias), no_bias, {}}, {}}, {static_cast<T*>(epilogue.z), stride_c}},
        {epilogue.activation}},
       nullptr,
       {},
       static_cast<T*>(product.c),
       stride_c},
      context);
}

// a's rows are of unit stride, as those of x are.
template <class T>
Status linear_sm90(const Matmul& product, const Context& context) {
  return product.b.transposed ? launch_linear_sm90<T, ColumnMajor>(product, context)
                              : launch_linear_sm90<T, RowMajor>(product, context);
}

}  // namespace fusedops::cuda
