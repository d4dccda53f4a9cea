// gated_linear for 16 bits on compute capability 9.x: one product of x with both weights, whose halves meet in
// registers. Limit: the tensor cores.
//
// A tile has 64 columns of y, and the 64 columns of sums of either weight, so that a thread holds both factors of each
// of its results. The warpgroups take turns, as in linear_sm90.cuh. To TMA the two weights are one tensor, in which the
// distance between them is a stride: they may lie anywhere, or be the halves of a packed weight.
#pragma once

#include "ops/products/gated_linear.h"
#include "ops/products/linear_sm90.cuh"

namespace fusedops::cuda {

inline constexpr int kTurn = kGatedColumns;  // the width of TMA's boxes, where columns are of unit stride

// The transpose of the 4 x 4 words that the four lanes of a quad hold: lane i gives its word j to lane j, as word i.
__device__ inline void transpose_in_quad(uint32_t (&words)[4]) {
  const int lane = threadIdx.x % 4;
  const auto exchange = [](uint32_t& low, uint32_t& high, bool is_high, int distance) {
    const uint32_t got = __shfl_xor_sync(0xffffffff, is_high ? low : high, distance);
    (is_high ? low : high) = got;
  };
  exchange(words[0], words[2], lane & 2, 2);
  exchange(words[1], words[3], lane & 2, 2);
  exchange(words[0], words[1], lane & 1, 1);
  exchange(words[2], words[3], lane & 1, 1);
}

// The epilogue, which writes y itself. Of each 8 columns of its tile, a thread holds the sums of two neighbours, in one
// row and in that 8 below.
template <class T>
class StoreGated {
 public:
  using EpilogueSchedule = cutlass::gemm::EpilogueDefault;
  using DispatchPolicy = EpilogueSchedule;
  using ThreadEpilogueOp = void;
  using ElementAccumulator = float;
  using ElementOutput = T;
  using ElementC = T;
  using ElementD = T;
  using StrideC = cute::Stride<int64_t, cute::_1, int64_t>;
  using StrideD = StrideC;
  struct SharedStorage {};

  struct Arguments {
    const T *gate_bias, *up_bias;
    T *y, *gate, *up;  // gate and up: null if not wanted
    int rows, columns, activation;
    bool up_first;
  };
  using Params = Arguments;

  template <class Problem>
  static constexpr Params to_underlying_arguments(const Problem&, const Arguments& arguments, void*) {
    return arguments;
  }
  template <class Problem>
  static size_t get_workspace_size(const Problem&, const Arguments&) {
    return 0;
  }
  template <class Problem>
  static cutlass::Status initialize_workspace(const Problem&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }
  template <class Problem>
  static bool can_implement(const Problem&, const Arguments&) {
    return true;
  }

  CUTLASS_HOST_DEVICE explicit StoreGated(const Params& params) : params_(params) {}

  template <class Problem, class Tile, class Coordinates, class Sums, class Mma, class Residue>
  CUTLASS_DEVICE void operator()(const Problem&, const Tile&, const Coordinates& coordinates, const Sums& sums,
                                 const Mma&, const Residue&, int thread, char*) const {
    static_assert(decltype(cute::size(sums))::value == 2 * 2 * 4 * kGroups);  // 64 rows, twice; both weights
    const int row = int(cute::get<0>(coordinates)) * 128 + thread / 32 * 16 + thread % 32 / 4;
    const int column = int(cute::get<1, 2>(coordinates)) * kTurn;
#pragma unroll
    for (int below = 0; below < 2; ++below)
#pragma unroll
      for (int group = 0; group < kGroups; group += 4) {  // 32 columns at a time
        const int first = 4 * (below * 2 * kGroups + group), second = first + 4 * kGroups;
        Fragment gate, up;
#pragma unroll
        for (int i = 0; i < kFragment; ++i) {
          gate[i] = sums(first + i);
          up[i] = sums(second + i);
        }
        if (params_.up_first) cutlass::swap(gate, up);
        finish(gate, up, row + below * 64, column + group * 8);
      }
  }

 private:
  static constexpr int kGroups = kTurn / 8;
  static constexpr int kFragment = 16;
  using Fragment = cutlass::Array<float, kFragment>;

  CUTLASS_DEVICE void finish(Fragment& gate, Fragment& up, int row, int column) const {
    add(gate, params_.gate_bias, column);
    add(up, params_.up_bias, column);
    if (params_.gate) store(gate, params_.gate, row, column);
    if (params_.up) store(up, params_.up, row, column);
    activations::dispatch(params_.activation, [&](auto chosen) {
#pragma unroll
      for (int i = 0; i < kFragment; ++i) gate[i] = decltype(chosen)::at(gate[i]).value * up[i];
    });
    store(gate, params_.y, row, column);
  }

  CUTLASS_DEVICE void add(Fragment& sums, const T* bias, int column) const {
    if (!bias) return;
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      const int from = column + group * 8 + threadIdx.x % 4 * 2;
      if (from >= params_.columns) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float value = float(bias[from + i]);
        sums[group * 4 + i] += value;
        sums[group * 4 + 2 + i] += value;
      }
    }
  }

  // Each lane of a quad writes 8 neighbours: 64 bytes of a row in one access.
  CUTLASS_DEVICE void store(const Fragment& sums, T* to, int row, int column) const {
    const cutlass::NumericArrayConverter<T, float, 2> round;
    column += threadIdx.x % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t words[4];
#pragma unroll
      for (int group = 0; group < 4; ++group) {
        const cutlass::Array<float, 2> pair = {sums[group * 4 + half * 2], sums[group * 4 + half * 2 + 1]};
        const cutlass::Array<T, 2> rounded = round(pair);
        words[group] = reinterpret_cast<const uint32_t&>(rounded);
      }
      transpose_in_quad(words);
      const int to_row = row + half * 8;
      if (to_row < params_.rows && column < params_.columns)
        *reinterpret_cast<uint4*>(to + int64_t(to_row) * params_.columns + column) =
            make_uint4(words[0], words[1], words[2], words[3]);
    }
  }

  Params params_;
};

// The columns of sums: 64 of a weight, of both weights, as often as y has 64.
using GatedProblem = cute::Shape<int, cute::Shape<int, int, int>, int, int>;
using GatedTile = cute::Shape<cute::_128, cute::Shape<cute::Int<kTurn>, cute::_2, cute::_1>, cute::_64>;

template <bool kAlongK>
using GatedStride =
    cute::conditional_t<kAlongK, cute::Stride<cute::Stride<int64_t, int64_t, int64_t>, cute::_1, int64_t>,
                        cute::Stride<cute::Stride<cute::_1, int64_t, int64_t>, int64_t, int64_t>>;
template <class T>
using GatedEpilogue = cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<StoreGated<T>>;

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
  typename StoreGated<T>::Arguments epilogue{static_cast<const T*>(call.gate_bias),
                                             static_cast<const T*>(call.up_bias),
                                             static_cast<T*>(call.y),
                                             static_cast<T*>(call.gate),
                                             static_cast<T*>(call.up),
                                             int(call.rows),
                                             int(call.columns),
                                             call.activation,
                                             up_first};
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
