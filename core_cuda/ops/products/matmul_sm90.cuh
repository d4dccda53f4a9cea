// The 16-bit product on compute capability 9.x. Reads a and b once per block tile through TMA, computes on the
// warpgroup tensor cores (wgmma) in float32 over the whole of k, rounds once, writes c through TMA. Limit: the tensor
// cores.
//
// CUTLASS's collective builders make the kernel: one warp copies tiles into a ring in shared memory, two warpgroups
// multiply them.
#pragma once

#include "core/cuda/launch.cuh"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "ops/products/matmul_paths.h"

namespace fusedops::cuda {

using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;

// A tile of 128 x 256 is the largest whose sums fit into the registers of two warpgroups, and so reads the least; a
// cluster of two blocks shares each tile of b.
using Sm90Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
struct LargeTiles {
  using Tile = cute::Shape<cute::_128, cute::_256, cute::_64>;
  using Cluster = Sm90Cluster;
};

// For few of them: twice as many blocks, and none that has only a neighbour in its cluster.
struct SmallTiles {
  using Tile = cute::Shape<cute::_128, cute::_128, cute::_64>;
  using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;
};
template <class T>
inline constexpr int kTmaAlignment = 16 / sizeof(T);  // elements

// c, in the product's type, is written and never read: void stands for the operand that CUTLASS would add. Sums may be
// added to what c holds.
template <class Out>
using Addend = std::conditional_t<std::is_same_v<Out, float>, float, void>;

template <class Out, class Tiles>
using Sm90Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Tiles::Tile, typename Tiles::Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, Addend<Out>, RowMajor, kTmaAlignment<Out>, Out,
    RowMajor, kTmaAlignment<Out>, cutlass::epilogue::TmaWarpSpecializedCooperative>::CollectiveOp;

// As many stages of the ring as fit into shared memory beside the epilogue.
template <class Out, class Tiles>
inline constexpr int kSm90EpilogueBytes = sizeof(typename Sm90Epilogue<Out, Tiles>::SharedStorage);

template <class T, class LayoutA, class LayoutB, class Out, class Tiles>
using Sm90Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, T, LayoutA, kTmaAlignment<T>, T, LayoutB, kTmaAlignment<T>,
    float, typename Tiles::Tile, typename Tiles::Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<kSm90EpilogueBytes<Out, Tiles>>,
    cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;

// The problem is m, n, k and the number of batches.
template <class T, class LayoutA, class LayoutB, class Out, class Tiles>
using Sm90Kernel =
    cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Sm90Mainloop<T, LayoutA, LayoutB, Out, Tiles>,
                                         Sm90Epilogue<Out, Tiles>>;

// CuTe's stride of a matrix in a batch: unit along the first mode (column-major), or along the second (row-major).
template <class Stride>
Stride sm90_stride(int64_t stride, int64_t batch_stride) {
  Stride result;
  if constexpr (cute::is_static_v<std::tuple_element_t<0, Stride>>)
    cute::get<1>(result) = stride;
  else
    cute::get<0>(result) = stride;
  cute::get<2>(result) = batch_stride;
  return result;
}

template <class Kernel>
Status run_sm90(const typename Kernel::ProblemShape& problem, const typename Kernel::MainloopArguments& mainloop,
                const typename Kernel::EpilogueArguments& epilogue, const Context& context) {
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  cutlass::KernelHardwareInfo device;
  FUSEDOPS_TRY(check(cudaGetDevice(&device.device_id), "cudaGetDevice"));
  // Makes the GPU's context that of this thread: CUTLASS cannot describe tiles for TMA without one.
  FUSEDOPS_TRY(check(cudaSetDevice(device.device_id), "cudaSetDevice"));
  FUSEDOPS_TRY(check(cudaDeviceGetAttribute(&device.sm_count, cudaDevAttrMultiProcessorCount, device.device_id),
                     "cudaDeviceGetAttribute"));
  const typename Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGemm, problem, mainloop, epilogue,
                                           device};
  const auto stream = static_cast<cudaStream_t>(context.stream);
  Gemm gemm;
  cutlass::Status status = gemm.initialize(arguments, nullptr, stream);
  if (status == cutlass::Status::kSuccess) status = gemm.run(stream);
  if (status == cutlass::Status::kSuccess) return {};
  return Status::error("fusedops: a matrix product failed: ", cutlass::cutlassGetStatusString(status));
}

template <class T, class LayoutA, class LayoutB, class Out = T, class Tiles = LargeTiles>
Status launch_sm90(const Matmul& product, const Context& context) {
  using Kernel = Sm90Kernel<T, LayoutA, LayoutB, Out, Tiles>;
  const Matmul::Matrix &a = product.a, &b = product.b;
  const auto stride_c = sm90_stride<typename Kernel::StrideD>(product.c_stride, product.m * product.c_stride);
  return run_sm90<Kernel>(
      {int(product.m), int(product.n), int(product.k), int(product.batch)},
      {static_cast<const T*>(a.data), sm90_stride<typename Kernel::StrideA>(a.stride, a.batch_stride),
       static_cast<const T*>(b.data), sm90_stride<typename Kernel::StrideB>(b.stride, b.batch_stride)},
      {{1.0f, product.adds ? 1.0f : 0.0f},
       static_cast<Out*>(product.c),
       stride_c,
       static_cast<Out*>(product.c),
       stride_c},
      context);
}

template <class T, class Out = T, class Tiles = LargeTiles>
Status matmul_sm90(const Matmul& product, const Context& context) {
  // CUTLASS names a layout after op(a) and op(b): row-major is "not transposed" for both.
  if (product.a.transposed)
    return product.b.transposed ? launch_sm90<T, ColumnMajor, ColumnMajor, Out, Tiles>(product, context)
                                : launch_sm90<T, ColumnMajor, RowMajor, Out, Tiles>(product, context);
  return product.b.transposed ? launch_sm90<T, RowMajor, ColumnMajor, Out, Tiles>(product, context)
                              : launch_sm90<T, RowMajor, RowMajor, Out, Tiles>(product, context);
}

}  // namespace fusedops::cuda
