// Blocks of 16-bit logits on compute capability 9.x: a product whose epilogue computes the sums of the loss, or dz,
// from logits in registers. Limit: the tensor cores. The exponentials of one warpgroup take a tenth of the other's
// product of depth 4096 (direct_epilogue_sm90.cuh).
#pragma once

#include "core/cuda/rounding.cuh"
#include "ops/loss/linear_cross_entropy_dispatch.h"
#include "ops/products/direct_epilogue_sm90.cuh"

namespace fusedops::cuda {

// The forward stores the sums of each tile of kFineColumns, the logits of the labels and, if block.products is not
// null, the sums of the product; the backward stores dz.
template <class T>
struct StoreLoss {
  LogitBlock<T> block;
  LossGradient<float> loss;  // the forward only sets the base, LossRows
  RowStats<float>* fine;     // [rows, fine tiles]; null: the backward
  float* label_logits;
  T* dz;

  static constexpr int kStagedBytes = 0;

  __forceinline__ __device__ void operator()(const SumPlace::Sums& sums, const WorkTile& tile, char*) const {
    if (!block.is_plain() || loss.has_shares() || loss.has_entropy || loss.dentropy)
      each_row<false>(sums, tile);
    else
      each_row<true>(sums, tile);
  }

 private:
  // kPlain: the sums are the logits, without weights of classes and without an entropy. The loops over a row's 32 sums
  // are unrolled: with branches for bias and cap in each step, instruction fetches took longer than the product.
  template <bool kPlain>
  __forceinline__ __device__ void each_row(const SumPlace::Sums& sums, const WorkTile& work_tile) const {
    const int first_row = work_tile.row + SumPlace::first_row();
    const int tile = work_tile.column / int(kFineColumns);
    const auto label_of = [&](int i) {
      const int row = first_row + SumPlace::row(i);
      return i < SumPlace::kRows && row < block.rows ? loss.labels[block.row + row] : -1;
    };
    int64_t next_label = label_of(0);
#pragma unroll 1
    for (int i = 0; i < SumPlace::kRows; ++i) {
      const int row = first_row + SumPlace::row(i);
      const bool exists = row < block.rows;
      const int64_t label = next_label;
      next_label = label_of(i + 1);
      SumPlace::Row of_row;
      SumPlace::copy_row(sums, i, of_row);
      if (block.products && exists) store_sums(of_row, row, tile);
      if (fine)
        sum_up<kPlain>(of_row, row, exists, tile, label);
      else
        differentiate<kPlain>(of_row, row, exists, tile, label);
    }
  }

  template <bool kPlain>
  __forceinline__ __device__ Activated<float> logit(float sum, int64_t column) const {
    if constexpr (kPlain) return {sum, 1.0f};
    const float z = block.bias ? sum + to_compute(block.bias[column]) : sum;
    if (block.cap == 0) return {z * block.factor, block.factor};
    // The cheapest form. Its error is absolute, and below the error of the sum if the cap is small.
    const float t = 1 - 2 * activations::reciprocal(1 + exp2_(z * block.inverse_cap * float(2 * kLog2E)));
    return {block.cap * t * block.factor, (1 - t * t) * block.factor};
  }

  __forceinline__ __device__ void store_sums(const SumPlace::Row& sums, int row, int tile) const {
    const int groups = groups_in(tile);
    float* const to =
        block.products + int64_t(row) * block.columns + int64_t(tile) * kFineColumns + threadIdx.x % 4 * 2;
#pragma unroll
    for (int group = 0; group < SumPlace::kGroups; ++group)
      if (group < groups)
        *reinterpret_cast<float2*>(to + group * 8) = make_float2(sums[2 * group], sums[2 * group + 1]);
  }

  // Groups of 8 columns in a tile; the columns are a multiple of 8.
  __forceinline__ __device__ int groups_in(int tile) const {
    return min(SumPlace::kGroups, int((block.columns - int64_t(tile) * kFineColumns) / 8));
  }

  template <bool kPlain>
  __forceinline__ __device__ void sum_up(const SumPlace::Row& sums, int row, bool exists, int tile,
                                         int64_t label) const {
    constexpr float kNegInf = -std::numeric_limits<float>::infinity();
    const int groups = groups_in(tile), place = threadIdx.x % 4;
    const int64_t first = int64_t(tile) * kFineColumns + place * 2;
    const int own = label - block.first_class - first;  // the label's column, relative to the thread's first one
    float logits[2 * SumPlace::kGroups], max = kNegInf;
#pragma unroll
    for (int j = 0; j < 2 * SumPlace::kGroups; ++j) {
      const int group = j / 2, at = group * 8 + j % 2;
      logits[j] = group < groups ? logit<kPlain>(sums[j], first + at).value : kNegInf;
      max = fmax(max, logits[j]);
      if (own == at && group < groups && exists) label_logits[block.row + row] = logits[j];
    }
    max = in_quad(max, [](float a, float b) { return fmax(a, b); });
    const auto add = [](float a, float b) { return a + b; };
    const float base = max == kNegInf ? 0 : max;  // -inf minus -inf is NaN
    float exponentials = 0, moment = 0, share = 0;
#pragma unroll
    for (int j = 0; j < 2 * SumPlace::kGroups; ++j) exponentials += exp2_or_zero((logits[j] - base) * float(kLog2E));
    exponentials = in_quad(exponentials, add);
    if (loss.smoothing != 0) {
      const float uniform = loss.share();
#pragma unroll
      for (int j = 0; j < 2 * SumPlace::kGroups; ++j) {
        if (j / 2 >= groups) continue;
        const float of_class = kPlain ? uniform : loss.share(block.first_class + first + j / 2 * 8 + j % 2);
        moment = fused(logits[j] - base, of_class, moment);
        share += of_class;
      }
      moment = in_quad(moment, add);
      share = in_quad(share, add);
    }
    if constexpr (!kPlain)
      if (loss.has_entropy) {
#pragma unroll
        for (int j = 0; j < 2 * SumPlace::kGroups; ++j) moment += LossRows<float>::entropy_term(logits[j] - base);
        moment = in_quad(moment, add);
      }
    if (exists && place == 0) fine[row * fine_tiles(block.columns) + tile] = {max, exponentials, moment, share};
  }

  template <bool kPlain>
  __forceinline__ __device__ void differentiate(const SumPlace::Row& sums, int row, bool exists, int tile,
                                                int64_t label) const {
    const int groups = groups_in(tile), place = threadIdx.x % 4;
    const int64_t first = int64_t(tile) * kFineColumns + place * 2;
    const int own = label - block.first_class - first;
    const bool is_zero = loss.is_zero(label);
    const int64_t of = exists ? block.row + row : 0;
    const auto derivative = loss.derivative(of);
    const float of_label = loss.target_of_label(of, label);
    T* const to = dz + int64_t(row) * block.columns + int64_t(tile) * kFineColumns + place * 8;
#pragma unroll
    for (int group = 0; group < SumPlace::kGroups; group += 4) {  // 32 columns at a time
      float values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int at = (group + j / 2) * 8 + j % 2;
        values[j] = 0;
        if (is_zero || group + j / 2 >= groups) continue;
        const auto z = logit<kPlain>(sums[group * 2 + j], first + at);
        if constexpr (kPlain) {
          values[j] = derivative(z.value, own == at ? of_label : loss.uniform);
        } else {
          const float target = own == at ? of_label : loss.target(block.first_class + first + at);
          values[j] = derivative.with_entropy(z.value, target) * z.slope;
        }
      }
      const uint4 words = rounded_in_quad<T>(values);
      if (exists && group + place < groups) *reinterpret_cast<uint4*>(to + group * 8) = words;
    }
  }

  template <class Combine>
  static __forceinline__ __device__ float in_quad(float value, Combine combine) {
    value = combine(value, __shfl_xor_sync(0xffffffff, value, 1));
    return combine(value, __shfl_xor_sync(0xffffffff, value, 2));
  }
};

template <class T>
Status loss_sm90(const Matmul& product, const StoreLoss<T>& epilogue, const Context& context) {
  static_assert(PingPongTiles::kColumns == kFineColumns);
  return product.b.transposed ? launch_gemm<T, PingPongTiles, true, true>(product, epilogue, context)
                              : launch_gemm<T, PingPongTiles, true, false>(product, epilogue, context);
}

}  // namespace fusedops::cuda
