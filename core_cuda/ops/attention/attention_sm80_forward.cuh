// Attention's forward with mma, compute capability 8.0 and later.
//
// A block has a tile of queries of one head and loops over tiles of visible keys. Scores stay in the registers of the
// warp that owns the rows: they become probabilities there, rounded to T, and are multiplied with v. The copy of v
// overlaps with the product with k, the copy of the next k with the product with v.
// Dao, "FlashAttention-2: Faster attention with better parallelism and work partitioning", 2023.
//
// Limit: the tensor cores. Two or three blocks per multiprocessor hide each other's exponentials and waits.
#pragma once

#include "core/cuda/launch.cuh"
#include "ops/attention/attention_fragments.cuh"
#include "ops/attention/attention_kernels.h"
#include "ops/attention/attention_sm80_dropout.cuh"

namespace fusedops::cuda {

template <int kD_>
struct ForwardTile {
  static constexpr int kD = kD_;  // features of q, k and v, padded with zeros
  static constexpr int kRowTiles =
      kD > 128 ? 1 : 2;  // of 16 queries per warp: more tiles reuse each fragment of k more often
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kWarpM = 16 * kRowTiles, kM = kWarpM * kWarps;
  static constexpr int kN = kD > 128 ? 32 : kD > 64 ? 64 : 128;
  static constexpr int kBlocks = 2;  // minimum per multiprocessor
  static constexpr int kPitch = kPitchOf<kD>;
  static constexpr int kSharedBytes = (kM + 2 * kN) * kPitch * 2 + kM * sizeof(const uint8_t*);
};

// Replaces masked scores by -inf. `visible_rows` has a bit for each row with a visible key.
template <class Tile, class Terms>
__device__ void mask_scores(const Attention& call, const Sequence& sequence, int first_query, int first_key,
                            const uint8_t* const* mask_rows, const Terms& terms, uint32_t& visible_rows,
                            Fragments<Tile::kRowTiles, Tile::kN / 8>& scores) {
#pragma unroll
  for (int row = 0; row < 2 * Tile::kRowTiles; ++row) {
    const int in_warp = row / 2 * 16 + fragment_row(row % 2 * 2);
    const Range keys = call.band.keys(sequence, first_query + in_warp);
    const uint8_t* const mask = call.has_mask ? mask_rows[in_warp] : nullptr;
    uint32_t visible = 0;  // one bit per score of the row; not unrolled, to save registers
#pragma unroll 1
    for (int i = 0; i < Tile::kN / 4; ++i) {
      const int column = i / 2 * 8 + fragment_column(i % 2), key = first_key + column;
      if (keys.has(key) && (!mask || mask[call.mask.has_columns() ? key : 0]) && !terms.hides(in_warp, column))
        visible |= 1u << i;
    }
#pragma unroll
    for (int i = 0; i < Tile::kN / 4; ++i)
      if (!(visible >> i & 1)) scores[row / 2][i / 2][row % 2 * 2 + i % 2] = kNegInf<float>;
    if (visible) visible_rows |= 1u << row;
  }
}

template <class T, class Tile, bool kGeneral>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    attention_forward_kernel(const __grid_constant__ Attention call, const Scores<T> score, const bool aligned,
                             const bool y_aligned) {
  constexpr int kPitch = Tile::kPitch, kOutTiles = Tile::kD / 8;
  begin_kernel();
  extern __shared__ int4 shared[];
  T* const q = reinterpret_cast<T*>(shared);
  T* const k = q + Tile::kM * kPitch;
  T* const v = k + Tile::kN * kPitch;
  const uint8_t** const mask_rows = reinterpret_cast<const uint8_t**>(v + Tile::kN * kPitch);

  const HeadTile tile = find_tile(call, Side::queries, blockIdx.x, gridDim.x, Tile::kM);
  if (tile.sequence < 0) return;
  const int64_t b = tile.sequence, batch = call.batch_index(b);
  const Sequence sequence = call.sequence(b);
  const int head = tile.head, key_head = call.key_head(head), first_query = tile.tile * Tile::kM;
  const Range queries{first_query, min(first_query + Tile::kM, sequence.queries)};
  const Range keys = call.band.keys(sequence, queries);
  const Range of_all = call.band.keys_of_all(sequence, queries);

  using Copy = RowCopy<T, Tile::kD, Tile::kThreads>;
  Copy(call.q.row<const T>(batch, sequence.first_query + first_query, head), call.q.position)
      .template start<Tile::kM>(q, call.q.position, queries.end - first_query, call.dim, aligned);
  commit_copies();  // q needs its own group: without keys no copy of k follows
  int first = keys.is_empty() ? keys.end : keys.begin / Tile::kN * Tile::kN;
  Copy of_k(call.k.row<const T>(batch, sequence.first_key + first, key_head), call.k.position);
  Copy of_v(call.v.row<const T>(batch, sequence.first_key + first, key_head), call.v.position);
  const auto copy_k = [&](int at) {
    of_k.template start<Tile::kN>(k, call.k.position, keys.end - at, call.dim, aligned);
    of_k.advance(Tile::kN * call.k.position);
    commit_copies();
  };
  const auto copy_v = [&](int at) {
    of_v.template start<Tile::kN>(v, call.v.position, keys.end - at, call.dim_v, aligned);
    of_v.advance(Tile::kN * call.v.position);
    commit_copies();
  };
  if (call.has_mask)
    for (int i = threadIdx.x; i < Tile::kM; i += Tile::kThreads)
      mask_rows[i] = call.mask.row(call.row(b, sequence, head, min(first_query + i, sequence.queries - 1)));

  const int warp_row = threadIdx.x / 32 * Tile::kWarpM;
  const auto dropout = kGeneral ? prepared(call.dropout) : DroppedProbabilities{};
  OnlineSoftmax<Tile::kRowTiles> softmax;
  Fragments<Tile::kRowTiles, kOutTiles> y = {};
  uint32_t visible_rows = 0;
  if (first < keys.end) copy_k(first);
  for (; first < keys.end; first += Tile::kN) {
    wait_for_copies<0>();
    __syncthreads();  // k has arrived, and the previous v has been read
    copy_v(first);
    Fragments<Tile::kRowTiles, Tile::kN / 8> scores = {};
    multiply<Tile::kD, AlongK<kPitch>, AlongK<kPitch>>(scores, q + warp_row * kPitch, k);
    wait_for_copies<0>();
    __syncthreads();  // v has arrived, and k has been read
    if (first + Tile::kN < keys.end) copy_k(first + Tile::kN);

    if (!score.is_product) {
#pragma unroll
      for (auto& row : scores)
#pragma unroll
        for (auto& fragment : row)
#pragma unroll
          for (float& element : fragment) element = score.of(element);
    }
    const auto terms = [&] {
      if constexpr (kGeneral)
        return FragmentTerms<T>(call, b, sequence, head, first_query + warp_row, first);
      else
        return NoTerms();
    }();
    if (kGeneral && call.has_terms()) {
#pragma unroll
      for (int i = 0; i < Tile::kRowTiles; ++i)
#pragma unroll
        for (int j = 0; j < Tile::kN / 8; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) scores[i][j][e] += terms(i * 16 + fragment_row(e), j * 8 + fragment_column(e));
    }
    if (call.has_mask || (kGeneral && call.bias.is_given()) || first < of_all.begin || first + Tile::kN > of_all.end)
      mask_scores<Tile>(call, sequence, first_query + warp_row, first, mask_rows + warp_row, terms, visible_rows,
                        scores);
    else
      visible_rows = ~0u;
    softmax.add(scores, y, score.factor);
    if (kGeneral && call.dropout.seed)
      drop(dropout, call.first_probability(call.row(b, sequence, head, first_query + warp_row)) + first, call.keys,
           scores);
    multiply_scores<AlongRows<kPitch>>(y, scores, v);
  }
  wait_for_copies<0>();
  __syncthreads();  // q has arrived even if there was no key: its batch is free

  const float sink = call.sinks.data ? call.sinks.get<T>(head) : 0;
  // Divides rows by their sums and stores them through the memory of the warp's rows of q.
  T* const rows = q + warp_row * kPitch;
  visible_rows |= __shfl_xor_sync(~0u, visible_rows, 1);
  visible_rows |= __shfl_xor_sync(~0u, visible_rows, 2);
#pragma unroll
  for (int row = 0; row < 2 * Tile::kRowTiles; ++row) {
    const bool none = !(visible_rows >> row & 1);
    float sum = sum_of_row(softmax.sum[row]), max = score.scaled(softmax.max[row]);
    const float of_keys = call.sinks.data ? add_sink(sink, max, sum) : 1;
    const float share = of_keys * (kGeneral ? dropout.scale : 1) / sum;
    const int in_warp = row / 2 * 16 + fragment_row(row % 2 * 2), query = first_query + warp_row + in_warp;
#pragma unroll
    for (int j = 0; j < kOutTiles; ++j) {
      const float* const pair = &y[row / 2][j][row % 2 * 2];
      *reinterpret_cast<uint32_t*>(rows + in_warp * kPitch + j * 8 + fragment_column(0)) =
          none ? 0 : rounded_pair<T>(pair[0] * share, pair[1] * share);
    }
    if (threadIdx.x % 4 == 0 && query < sequence.queries)
      *call.lse.row<float>(batch, sequence.first_query + query, head) = max + logf(sum);
  }
  __syncwarp();
  store_rows<Tile::kWarpM, Tile::kD>(rows, call.y.row<T>(batch, sequence.first_query + first_query + warp_row, head),
                                     call.y.position, queries.end - first_query - warp_row, call.dim_v, y_aligned);
}

template <class T, class Tile, bool kGeneral>
Status launch_forward(const Attention& call, const Context& context) {
  const int64_t blocks = most_tiles(call, Side::queries, Tile::kM) * call.heads;
  return launch(context, attention_forward_kernel<T, Tile, kGeneral>, Grid{blocks, Tile::kThreads, Tile::kSharedBytes},
                call, Scores<T>(call), are_aligned<T>(call.q) && are_aligned<T>(call.k) && are_aligned<T>(call.v),
                are_aligned<T>(call.y));
}

template <class T, bool kGeneral = false>
Status sm80_forward(const Attention& call, const Context& context) {
  const int dim = std::max(call.dim, call.dim_v);
  if (dim <= 64) return launch_forward<T, ForwardTile<64>, kGeneral>(call, context);
  if (dim <= 128) return launch_forward<T, ForwardTile<128>, kGeneral>(call, context);
  return launch_forward<T, ForwardTile<256>, kGeneral>(call, context);
}

}  // namespace fusedops::cuda
