// gated_linear for 16 bits on compute capability 9.x: one product of x with both weights, whose halves meet in
// registers. Limit: the tensor cores.
//
// A tile has 64 columns of y, and the 64 columns of sums of either weight, so that a thread holds both factors of each
// of its results. The warpgroups take turns, as in linear_sm90.cuh. To TMA the two weights are one tensor, in which the
// distance between them is a stride: they may lie anywhere, or be the halves of a packed weight.
#pragma once

#include "ops/products/direct_epilogue_sm90.cuh"
#include "ops/products/gated_linear.h"
#include "ops/products/linear_sm90.cuh"

namespace fusedops::cuda {

inline constexpr int kTurn = kGatedColumns;  // the width of TMA's boxes, where columns are of unit stride

// Writes y, and both factors if they are wanted.
template <class T>
struct StoreGated {
  const T *gate_bias, *up_bias;
  T *y, *gate, *up;  // gate and up: null if not wanted
  int rows, columns, activation;
  bool up_first;

  template <class Sums, class Coordinates>
  CUTLASS_DEVICE void operator()(const Sums& sums, const Coordinates& coordinates, int thread) const {
    const int row = int(cute::get<0>(coordinates)) * 128 + SumPlace::first_row(thread);
    const int column = int(cute::get<1, 2>(coordinates)) * kTurn;
#pragma unroll
    for (int i = 0; i < SumPlace::kRows; ++i)
#pragma unroll
      for (int group = 0; group < kTurn / 8; group += 4) {  // 32 columns at a time
        Fragment left, right;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          left[j] = sums(SumPlace::at(i, group + j / 2) + j % 2);
          right[j] = sums(SumPlace::at(i, group + kTurn / 8 + j / 2) + j % 2);
        }
        if (up_first) cutlass::swap(left, right);
        finish(left, right, row + SumPlace::row(i), column + group * 8);
      }
  }

 private:
  using Fragment = cutlass::Array<float, 8>;

  CUTLASS_DEVICE void finish(Fragment& left, Fragment& right, int row, int column) const {
    add(left, gate_bias, column);
    add(right, up_bias, column);
    if (gate) store(left, gate, row, column);
    if (up) store(right, up, row, column);
    activations::dispatch(activation, [&](auto chosen) {
#pragma unroll
      for (int i = 0; i < 8; ++i) left[i] = decltype(chosen)::at(left[i]).value * right[i];
    });
    store(left, y, row, column);
  }

  CUTLASS_DEVICE void add(Fragment& sums, const T* bias, int column) const {
    if (!bias) return;
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      const int from = column + group * 8 + threadIdx.x % 4 * 2;
      if (from >= columns) continue;
      sums[group * 2] += float(bias[from]);
      sums[group * 2 + 1] += float(bias[from + 1]);
    }
  }

  CUTLASS_DEVICE void store(const Fragment& values, T* to, int row, int column) const {
    const uint4 words = rounded_in_quad<T>(values);
    column += threadIdx.x % 4 * 8;
    if (row < rows && column < columns) *reinterpret_cast<uint4*>(to + int64_t(row) * columns + column) = words;
  }
};

// The columns of sums: 64 of a weight, of both weights, as often as y has 64.
using GatedProblem = cute::Shape<int, cute::Shape<int, int, int>, int, int>;
using GatedTile = cute::Shape<cute::_128, cute::Shape<cute::Int<kTurn>, cute::_2, cute::_1>, cute::_64>;

template <bool kAlongK>
using GatedStride =
    cute::conditional_t<kAlongK, cute::Stride<cute::Stride<int64_t, int64_t, int64_t>, cute::_1, int64_t>,
                        cute::Stride<cute::Stride<cute::_1, int64_t, int64_t>, int64_t, int64_t>>;
template <class T>
using GatedEpilogue =
    cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<DirectEpilogue<T, StoreGated<T>>>;

template <class T, bool kAlongK>
using GatedMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, T, RowMajor, kTmaAlignment<T>, T, GatedStride<kAlongK>,
    kTmaAlignment<T>, float, GatedTile, Sm90Cluster, cutlass::gemm::collective::StageCountAutoCarveout<0>,
    cutlass::gemm::KernelTmaWarpSpecializedPingpong>::CollectiveOp;

template <class T, bool kAlongK>
Status launch_gated_sm90(const GatedLinear& call, const Context& context) {
  using Kernel = cutlass::gemm::kernel::GemmUniversal<GatedProblem, GatedMainloop<T, kAlongK>, GatedEpilogue<T>>;
  const bool up_first = call.up_weight.data < call.gate_weight.data;
  const Matmul::Matrix& first = up_first ? call.up_weight : call.gate_weight;
  const auto* const second = static_cast<const T*>((up_first ? call.gate_weight : call.up_weight).data);
  const int64_t distance = second - static_cast<const T*>(first.data);
  GatedStride<kAlongK> stride;
  cute::get<0, 1>(stride) = distance;
  cute::get<0, 2>(stride) = kAlongK ? kTurn * first.stride : kTurn;
  cute::get<2>(stride) = 0;
  if constexpr (kAlongK)
    cute::get<0, 0>(stride) = first.stride;
  else
    cute::get<1>(stride) = first.stride;
  StoreGated<T> epilogue = {};
  epilogue.gate_bias = static_cast<const T*>(call.gate_bias);
  epilogue.up_bias = static_cast<const T*>(call.up_bias);
  epilogue.y = static_cast<T*>(call.y);
  epilogue.gate = static_cast<T*>(call.gate);
  epilogue.up = static_cast<T*>(call.up);
  epilogue.rows = int(call.rows);
  epilogue.columns = int(call.columns);
  epilogue.activation = call.activation;
  epilogue.up_first = up_first;
  return run_sm90<Kernel>({int(call.rows), {kTurn, 2, int(call.columns / kTurn)}, int(call.depth), 1},
                          {static_cast<const T*>(call.x.data), sm90_stride<typename Kernel::StrideA>(call.x.stride, 0),
                           static_cast<const T*>(first.data), stride},
                          epilogue, context);
}

template <class T>
Status gated_sm90(const GatedLinear& call, const Context& context) {
  return call.gate_weight.transposed ? launch_gated_sm90<T, true>(call, context)
                                     : launch_gated_sm90<T, false>(call, context);
}

}  // namespace fusedops::cuda
