// The gradient of a bias in 16 bits, with mma, compute capability 8.0 and later.
//
// A block has a tile of one matrix of the bias, and sums p * (dp - delta) over the heads that share the matrix, in
// order, and over rows or columns that it lacks. Scores and dp are computed again: two products for each tile. A warp
// has 16 queries. Limit: reading q, k, v and dy from L2.
#include "core/cuda/launch.cuh"
#include "ops/attention/attention_bias.cuh"
#include "ops/attention/attention_fragments.cuh"
#include "ops/attention/attention_kernels.h"
#include "ops/attention/attention_sm80_dropout.cuh"

namespace fusedops::cuda {
namespace {

template <int kD_>
struct DbiasTile {
  static constexpr int kD = kD_;                    // features of q, k and v at a time, padded with zeros
  static constexpr int kSize = kD > 128 ? 32 : 64;  // queries, and keys
  static constexpr int kWarps = kSize / 16, kThreads = 32 * kWarps;
  static constexpr int kPitch = kPitchOf<kD>, kSumPitch = kSize + 1;
  static constexpr int kElements = kSize * kPitch;  // of a tile of q, k, v or dy
  static constexpr int kSharedBytes = 4 * kElements * 2;
  static_assert(kSize * kSumPitch * 4 <= kSharedBytes);  // the sums reuse the memory of the tiles
};

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    attention_dbias_kernel(const __grid_constant__ Attention call, const Scores<T> score, const HeadRows deltas,
                           const __grid_constant__ BiasMatrices matrices, const bool aligned) {
  constexpr int kD = Tile::kD, kSize = Tile::kSize, kPitch = Tile::kPitch, kColumnTiles = kSize / 8;
  begin_kernel();
  extern __shared__ int4 shared[];
  T* const q = reinterpret_cast<T*>(shared);
  T* const dy = q + Tile::kElements;
  T* const k = dy + Tile::kElements;
  T* const v = k + Tile::kElements;
  const int warp_row = threadIdx.x / 32 * 16;
  const BiasTile tile(call, matrices, blockIdx.x, kSize, kSize);
  const auto dropout = prepared(call.dropout);
  using Copy = RowCopy<T, kD, Tile::kThreads>;
  const auto copy = [&](const HeadRows& rows, int64_t b, int first, int head, int count, int feature, int width,
                        T* to) {
    Copy(rows.row<const T>(b, first, head) + feature, rows.position)
        .template start<kSize>(to, rows.position, count, width - feature, aligned);
  };

  Fragments<1, kColumnTiles> total = {};
  for (int64_t n = 0; n < matrices.sharing_heads; ++n) {
    const int64_t of_matrix = matrices.heads.row_at(tile.place, n), b = of_matrix / call.heads;
    const int head = static_cast<int>(of_matrix % call.heads), key_head = call.key_head(head);
    const Sequence sequence = call.sequence(b);
    for (int first_query = tile.queries.begin; first_query < tile.queries.end; first_query += kSize) {
      const Range seen = call.band.keys(sequence, Range{first_query, min(first_query + kSize, sequence.queries)});
      for (int first_key = tile.keys.begin; first_key < tile.keys.end; first_key += kSize) {
        if (first_key >= seen.end || first_key + kSize <= seen.begin) continue;
        Fragments<1, kColumnTiles> p = {}, dp = {};
#pragma unroll 1
        for (int feature = 0; feature < max(call.dim, call.dim_v); feature += kD) {
          __syncthreads();  // the previous tiles have been read
          copy(call.q, b, first_query, head, sequence.queries - first_query, feature, call.dim, q);
          copy(call.dy, b, first_query, head, sequence.queries - first_query, feature, call.dim_v, dy);
          copy(call.k, b, first_key, key_head, sequence.valid_keys - first_key, feature, call.dim, k);
          copy(call.v, b, first_key, key_head, sequence.valid_keys - first_key, feature, call.dim_v, v);
          commit_copies();
          wait_for_copies<0>();
          __syncthreads();
          multiply<kD, AlongK<kPitch>, AlongK<kPitch>>(p, q + warp_row * kPitch, k);
          multiply<kD, AlongK<kPitch>, AlongK<kPitch>>(dp, dy + warp_row * kPitch, v);
        }
        if (call.dropout.seed)
          drop(dropout, call.first_probability(call.row(b, sequence, head, first_query + warp_row)) + first_key,
               call.keys, dp);
        const FragmentTerms<T> terms(call, b, sequence, head, first_query + warp_row, first_key);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int in_warp = fragment_row(2 * half), query = first_query + warp_row + in_warp;
          if (query >= sequence.queries) continue;
          const Range keys = call.band.keys(sequence, query);
          const uint8_t* const mask = call.has_mask ? call.mask.row(call.row(b, sequence, head, query)) : nullptr;
          const float lse = *call.lse.row<const float>(b, query, head);
          const float delta = *deltas.row<const float>(b, query, head);
#pragma unroll
          for (int j = 0; j < kColumnTiles; ++j)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; ++e) {
              const int column = j * 8 + fragment_column(e), key = first_key + column;
              const bool is_visible =
                  keys.has(key) && (!mask || mask[call.mask.has_columns() ? key : 0]) && !terms.hides(in_warp, column);
              const float scaled = score.scaled(score.of(p[0][j][e]) + terms(in_warp, column));
              const float share = exp2_or_zero(at_most_zero((scaled - lse) * float(kLog2E)));
              if (is_visible) total[0][j][e] += share * (dp[0][j][e] * dropout.scale - delta);
            }
        }
      }
    }
  }
  __syncthreads();  // all tiles have been read
  float* const of_tile = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      of_tile[(warp_row + fragment_row(e)) * Tile::kSumPitch + j * 8 + fragment_column(e)] = total[0][j][e];
  __syncthreads();
  store_bias_tile<T>(call, matrices, tile, kSize, kSize, Tile::kThreads,
                     [&](int row, int column) -> float& { return of_tile[row * Tile::kSumPitch + column]; });
}

template <class T, class Tile>
Status launch_dbias(const Attention& call, const HeadRows& deltas, const Context& context) {
  const BiasMatrices matrices(call);
  const bool aligned =
      are_aligned<T>(call.q) && are_aligned<T>(call.k) && are_aligned<T>(call.v) && are_aligned<T>(call.dy);
  return launch(context, attention_dbias_kernel<T, Tile>,
                Grid{bias_tiles(matrices, Tile::kSize, Tile::kSize), Tile::kThreads, Tile::kSharedBytes}, call,
                Scores<T>(call), deltas, matrices, aligned);
}

template <class T>
Status dbias(const Attention& call, const HeadRows& deltas, const Context& context) {
  const int dim = std::max(call.dim, call.dim_v);
  if (dim <= 64) return launch_dbias<T, DbiasTile<64>>(call, deltas, context);
  if (dim <= 128) return launch_dbias<T, DbiasTile<128>>(call, deltas, context);
  return launch_dbias<T, DbiasTile<256>>(call, deltas, context);
}

}  // namespace

Status attention_dbias(const Attention& call, const HeadRows& deltas, const Context& context) {
  return call.dtype == DType::f16 ? dbias<f16>(call, deltas, context) : dbias<bf16>(call, deltas, context);
}

}  // namespace fusedops::cuda
