// Warp-level products and softmax of scores in fragments of mma.m16n8k16. A warp holds 16 * kRowTiles rows of
// 8 * kColumnTiles columns. Of each 16 x 8, a lane has two adjacent columns in row lane / 4 and in the row 8 below.
#pragma once

#include "core/cuda/mma16.cuh"
#include "ops/attention/attention_scores.h"
#include "ops/attention/attention_tiles.cuh"
#include "ops/attention/softmax_base.cuh"

namespace fusedops::cuda {

template <int kRowTiles, int kColumnTiles>
using Fragments = float[kRowTiles][kColumnTiles][4];

// Row and column of a lane's element e in a fragment.
__device__ inline int fragment_row(int e) { return threadIdx.x % 32 / 4 + e / 2 * 8; }
__device__ inline int fragment_column(int e) { return threadIdx.x % 4 * 2 + e % 2; }

// Layouts of operands in shared memory: lines along k, or along the rows of the operand (see Mma16).
template <int kPitch>
struct AlongK {
  static __device__ constexpr int at(int row, int k) { return row * kPitch + k; }
};
template <int kPitch>
struct AlongRows {
  static __device__ constexpr int at(int row, int k) { return k * kPitch + row; }
};

// sums += a b^T for kDepth elements of k; a and b point to the first row of the warp's operands.
template <int kDepth, class TileA, class TileB, class T, int kRowTiles, int kColumnTiles>
__device__ void multiply(Fragments<kRowTiles, kColumnTiles>& sums, const T* a, const T* b) {
  using Mma = Mma16<T>;
  constexpr int kAtOnce = 4;  // fragments of b per load
  static_assert(kColumnTiles % kAtOnce == 0 || kColumnTiles == 2);
  constexpr int kStep = kColumnTiles < kAtOnce ? kColumnTiles : kAtOnce;
#pragma unroll
  for (int k = 0; k < kDepth; k += Mma::kK) {
    typename Mma::FragmentA of_a[kRowTiles];
    Mma::template load_a<TileA>(of_a, a + TileA::at(0, k));
#pragma unroll
    for (int j = 0; j < kColumnTiles; j += kStep) {
      typename Mma::FragmentB of_b[kStep];
      Mma::template load_b<TileB>(of_b, b + TileB::at(j * Mma::kN, k));
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int n = 0; n < kStep; ++n) Mma::multiply_add(sums[i][j + n], of_a[i], of_b[n]);
    }
  }
}

// sums += a b^T, where a are scores in registers, rounded to T.
template <class TileB, class T, int kRowTiles, int kColumnTiles, int kScoreTiles>
__device__ void multiply_scores(Fragments<kRowTiles, kColumnTiles>& sums,
                                const Fragments<kRowTiles, kScoreTiles>& scores, const T* b) {
  using Mma = Mma16<T>;
  constexpr int kStep = 4;
  static_assert(kColumnTiles % kStep == 0 && kScoreTiles % 2 == 0);
#pragma unroll
  for (int k = 0; k < kScoreTiles; k += 2) {
    typename Mma::FragmentA of_a[kRowTiles];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {
        const float* const pair = &scores[i][k + quarter / 2][quarter % 2 * 2];
        of_a[i][quarter] = rounded_pair<T>(pair[0], pair[1]);
      }
#pragma unroll
    for (int j = 0; j < kColumnTiles; j += kStep) {
      typename Mma::FragmentB of_b[kStep];
      Mma::template load_b<TileB>(of_b, b + TileB::at(j * Mma::kN, k * Mma::kN));
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int n = 0; n < kStep; ++n) Mma::multiply_add(sums[i][j + n], of_a[i], of_b[n]);
    }
  }
}

// The maximum and sum over the four lanes that share a row.
__device__ inline float max_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float sum_of_row(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// ALiBi and the bias of scores in fragments, by query and key from the first ones on.
template <class T>
struct FragmentTerms {
  __device__ FragmentTerms(const Attention& call, int64_t b, const Sequence& sequence, int head, int first_query,
                           int first_key)
      : bias(call.bias),
        slope(call.alibi.data ? call.alibi.get<T>(head) : 0),
        first_query(first_query),
        first_key(first_key),
        shift(sequence.shift),
        queries(sequence.queries),
        keys(call.keys),
        place(bias.is_given() ? call.bias_place(b, head) : 0),
        row(call.bias_row) {}

  __device__ float operator()(int query, int key) const {
    return alibi_bias(slope, first_query + query + shift, first_key + key) +
           bias_of(first_query + query, first_key + key);
  }

  // True if a bias of minus infinity masks the score.
  __device__ bool hides(int query, int key) const {
    return bias_of(first_query + query, first_key + key) == kNegInf<float>;
  }

  // 0 beyond the last query and key.
  __device__ float bias_of(int query, int key) const {
    return bias.is_given() && query < queries && key < keys ? bias.at<T>(place + query * row, key) : 0.0f;
  }

  const BroadcastBias& bias;
  float slope;
  int first_query, first_key, shift, queries, keys;
  int64_t place, row;
};

// The compiler removes the addition of -0.
struct NoTerms {
  __device__ float operator()(int, int) const { return -0.0f; }
  __device__ bool hides(int, int) const { return false; }
};

// The larger of `largest` and a warp's scores of row `row` of its lanes.
template <int kRowTiles, int kColumnTiles>
__device__ float max_of_scores(const Fragments<kRowTiles, kColumnTiles>& scores, int row, float largest) {
  const auto& tiles = scores[row / 2];
  const int e = row % 2 * 2;
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) largest = fmaxf(largest, fmaxf(tiles[j][e], tiles[j][e + 1]));
  return max_of_row(largest);
}

// The maximum of a row whose scores are all in one warp.
struct OwnMaximum {
  __device__ float operator()(int, float largest) const { return largest; }
};

// Online softmax of a warp's rows, relative to the running maximum.
// Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
template <int kRowTiles>
class OnlineSoftmax {
 public:
  static constexpr int kRows = 2 * kRowTiles;  // per lane

  __device__ OnlineSoftmax() {
#pragma unroll
    for (int row = 0; row < kRows; ++row) max[row] = kNegInf<float>, sum[row] = 0;
  }

  // Replaces the next scores, -inf if masked, by exponentials, and rescales all sums to the new maximum.
  // max_of_warps(row, largest) is the maximum over all warps that have scores of a row.
  template <int kColumnTiles, int kOutTiles, class MaxOfWarps = OwnMaximum>
  __device__ void add(Fragments<kRowTiles, kColumnTiles>& scores, Fragments<kRowTiles, kOutTiles>& sums, float factor,
                      MaxOfWarps max_of_warps = {}) {
    float rescales[kRows];
    bool changed = false;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      auto& tiles = scores[row / 2];
      const int e = row % 2 * 2;
      const float largest = max_of_warps(row, max_of_scores(scores, row, max[row]));
      const float base = base_of(largest);
      rescales[row] = rescale_factor(max[row], largest, factor);
      changed |= largest != max[row];
      max[row] = largest;
      sum[row] *= rescales[row];
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j)
#pragma unroll
        for (int i = e; i < e + 2; ++i) {
          tiles[j][i] = exp2_or_zero((tiles[j][i] - base) * factor);
          sum[row] += tiles[j][i];
        }
    }
    if (!__any_sync(~0u, changed)) return;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < kOutTiles; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j][e] *= rescales[2 * i + e / 2];
  }

  float max[kRows];
  float sum[kRows];  // over this lane's columns
};

}  // namespace fusedops::cuda
