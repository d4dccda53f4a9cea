// Blocks of logits for 16 bits on compute capability 9.x: the product, and in its epilogue what the loss makes of the
// logits, which never leave the registers. Limit: the tensor cores. One warpgroup's exponentials take about as long as
// a tenth of the other's product of depth 4096 (direct_epilogue_sm90.cuh).
#pragma once

#include "core/cuda/rounding.cuh"
#include "ops/loss/linear_cross_entropy_paths.h"
#include "ops/products/direct_epilogue_sm90.cuh"
#include "ops/products/linear_sm90.cuh"

namespace fusedops::cuda {

template <class T>
using CutlassType = std::conditional_t<std::is_same_v<T, f16>, cutlass::half_t, cutlass::bfloat16_t>;

// The forward writes the sums of each tile of kFineColumns and the logits of the labels; the backward writes dz.
template <class T>
struct StoreLoss {
  LogitBlock<T> block;
  LossGradient<float> loss;  // of the forward, only what LossRows has
  RowSums<float>* fine;      // [rows, fine tiles]; null: the backward
  float* label_logits;
  T* dz;

  template <class Sums, class Coordinates>
  CUTLASS_DEVICE void operator()(const Sums& sums, const Coordinates& coordinates, int thread) const {
    if (block.bias || block.cap != 0)
      each_row<false>(sums, coordinates, thread);
    else
      each_row<true>(sums, coordinates, thread);
  }

 private:
  // kPlain: the sums are the logits. All of this is written out for each of a thread's 128 sums: with branches around
  // bias and cap for each of them, fetching instructions took longer than the product.
  template <bool kPlain, class Sums, class Coordinates>
  CUTLASS_DEVICE void each_row(const Sums& sums, const Coordinates& coordinates, int thread) const {
    const int first_row = int(cute::get<0>(coordinates)) * 128 + SumPlace::first_row(thread);
    const int tile = int(cute::get<1>(coordinates));
#pragma unroll
    for (int i = 0; i < SumPlace::kRows; ++i) {
      const int row = first_row + SumPlace::row(i);
      const bool exists = row < block.rows;
      const int64_t label = exists ? loss.labels[block.row + row] : -1;
      const auto of_row = [&](int group, int side) { return sums(SumPlace::at(i, group) + side); };
      if (fine)
        sum_up<kPlain>(of_row, row, exists, tile, label);
      else
        differentiate<kPlain>(of_row, row, exists, tile, label);
    }
  }

  template <bool kPlain>
  CUTLASS_DEVICE Activated<float> logit(float sum, int64_t column) const {
    if constexpr (kPlain) return {sum, 1.0f};
    const float z = block.bias ? sum + to_compute(block.bias[block.column + column]) : sum;
    if (block.cap == 0) return {z, 1.0f};
    // The form that costs least. Its error is absolute: that of a small cap is less than the error of the sum.
    const float t = 1 - 2 * activations::reciprocal(1 + exp2_(z * block.inverse_cap * float(2 * kLog2E)));
    return {block.cap * t, 1 - t * t};
  }

  // Whole groups of 8 columns exist, or none of the group.
  CUTLASS_DEVICE int groups_in(int tile) const {
    return min(SumPlace::kGroups, int((block.columns - int64_t(tile) * kFineColumns) / 8));
  }

  template <bool kPlain, class OfRow>
  CUTLASS_DEVICE void sum_up(const OfRow& of_row, int row, bool exists, int tile, int64_t label) const {
    constexpr float kNothing = -std::numeric_limits<float>::infinity();
    const int groups = groups_in(tile), place = threadIdx.x % 4;
    const int64_t first = int64_t(tile) * kFineColumns + place * 2;
    const int own = label - block.column - first;  // of the thread's own columns, if it is one of them
    float logits[2 * SumPlace::kGroups], max = kNothing;
#pragma unroll
    for (int j = 0; j < 2 * SumPlace::kGroups; ++j) {
      const int group = j / 2, at = group * 8 + j % 2;
      logits[j] = group < groups ? logit<kPlain>(of_row(group, j % 2), first + at).value : kNothing;
      max = fmax(max, logits[j]);
      if (own == at && group < groups && exists) label_logits[block.row + row] = logits[j];
    }
    max = in_quad(max, [](float a, float b) { return fmax(a, b); });
    const auto add = [](float a, float b) { return a + b; };
    const float base = max == kNothing ? 0 : max;  // -inf minus -inf would be NaN
    float exponentials = 0, mean = 0;
#pragma unroll
    for (int j = 0; j < 2 * SumPlace::kGroups; ++j) exponentials += exp2_or_zero((logits[j] - base) * float(kLog2E));
    exponentials = in_quad(exponentials, add);
    if (loss.smoothing != 0) {
      const float share = 1 / float(loss.classes);
#pragma unroll
      for (int j = 0; j < 2 * SumPlace::kGroups; ++j)
        if (j / 2 < groups) mean = fused(logits[j] - base, share, mean);
      mean = in_quad(mean, add);
    }
    if (exists && place == 0)
      fine[row * fine_tiles(block.columns) + tile] = {max, exponentials, mean, float(groups * 8) / float(loss.classes)};
  }

  template <bool kPlain, class OfRow>
  CUTLASS_DEVICE void differentiate(const OfRow& of_row, int row, bool exists, int tile, int64_t label) const {
    const int groups = groups_in(tile), place = threadIdx.x % 4;
    const int64_t first = int64_t(tile) * kFineColumns + place * 2;
    const int own = label - block.column - first;
    const bool ignored = loss.is_ignored(label);
    const int64_t of = exists ? block.row + row : 0;
    const float slope = loss.is_class(label) ? loss.slope(of) : std::numeric_limits<float>::quiet_NaN();
    const auto derivative = loss.derivative(of, slope), of_label = loss.derivative_of_label(of, slope);
    T* const to = dz + int64_t(row) * block.columns + int64_t(tile) * kFineColumns + place * 8;
#pragma unroll
    for (int group = 0; group < SumPlace::kGroups; group += 4) {  // 32 columns at a time
      cutlass::Array<float, 8> values;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int at = (group + j / 2) * 8 + j % 2;
        values[j] = 0;
        if (ignored || group + j / 2 >= groups) continue;
        const auto z = logit<kPlain>(of_row(group + j / 2, j % 2), first + at);
        values[j] = (own == at ? of_label : derivative)(z.value) * z.slope;
      }
      const uint4 words = rounded_in_quad<CutlassType<T>>(values);
      if (exists && group + place < groups) *reinterpret_cast<uint4*>(to + group * 8) = words;
    }
  }

  template <class Combine>
  static CUTLASS_DEVICE float in_quad(float value, Combine combine) {
    value = combine(value, __shfl_xor_sync(0xffffffff, value, 1));
    return combine(value, __shfl_xor_sync(0xffffffff, value, 2));
  }
};

template <class T, class LayoutB>
Status launch_loss_sm90(const Matmul& product, const StoreLoss<T>& epilogue, const Context& context) {
  using Element = CutlassType<T>;
  using Epilogue =
      cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<DirectEpilogue<Element, StoreLoss<T>>>;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, RowMajor, kTmaAlignment<Element>, Element, LayoutB,
      kTmaAlignment<Element>, float, LinearTile, Sm90Cluster, cutlass::gemm::collective::StageCountAutoCarveout<0>,
      cutlass::gemm::KernelTmaWarpSpecializedPingpong>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>;
  return run_sm90<Kernel>(
      {int(product.m), int(product.n), int(product.k), 1},
      {static_cast<const Element*>(product.a.data), sm90_stride<typename Kernel::StrideA>(product.a.stride, 0),
       static_cast<const Element*>(product.b.data), sm90_stride<typename Kernel::StrideB>(product.b.stride, 0)},
      epilogue, context);
}

template <class T>
Status loss_sm90(const Matmul& product, const StoreLoss<T>& epilogue, const Context& context) {
  return product.b.transposed ? launch_loss_sm90<T, ColumnMajor>(product, epilogue, context)
                              : launch_loss_sm90<T, RowMajor>(product, epilogue, context);
}

}  // namespace fusedops::cuda
