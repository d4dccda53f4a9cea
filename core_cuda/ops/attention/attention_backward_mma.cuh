// The backward on the tensor cores of compute capability 8.0 and later.
//
// A block has a tile of keys of one head, and walks the queries that see them, tile by tile, of all query heads that
// share the key head, in order: dk and dv are sums in its registers. A warp owns rows of keys, so that p^T and ds^T,
// which it computes, are operands of its own products p^T dy and ds^T q as they are. Only ds is shared, for dq = ds k.
// The block with the first keys stores its part of dq in the workspace; each other one adds its part after the blocks
// with the keys before have added theirs. That order costs little: blocks with the same keys of many heads start
// together, and those with the next keys of the same heads follow them, one tile of queries behind.
//
// Limit: the tensor cores, and shared memory, which each warp reads q and dy from twice.
#pragma once

#include "core/cuda/launch.cuh"
#include "core/cuda/ordered.cuh"
#include "ops/attention/attention_dropout_mma.cuh"
#include "ops/attention/attention_fragments.cuh"
#include "ops/attention/attention_paths.h"

namespace fusedops::cuda {

// kM queries meet kN keys at a time; kStages of such tiles of queries are in shared memory. A block computes kOut
// columns of the gradients: with more, their sums would not fit into registers, and another block computes the rest.
template <int kD_, int kM_, int kStages_, int kRowTiles_, int kWarps_>
struct BackwardTile {
  static constexpr int kD = kD_, kM = kM_, kStages = kStages_;
  static constexpr int kRowTiles = kRowTiles_;  // of 16 keys, of a warp
  static constexpr int kWarps = kWarps_, kThreads = 32 * kWarps, kBlocks = 8 / kWarps;
  static constexpr int kWarpN = 16 * kRowTiles, kN = kWarpN * kWarps;
  static constexpr int kOut = kD < 128 ? kD : 128, kParts = kD / kOut;
  static constexpr int kPitch = kPitchOf<kD>, kScorePitch = kPitchOf<kM>;

  // The share of a warp in dq: 16 rows, and these columns.
  static constexpr int kRowGroups = kM / 16, kColumns = kOut * kRowGroups / kWarps;
  static_assert(kM >= BackwardSums::kLeastTile && kParts <= BackwardSums::kMostParts && kColumns % 32 == 0);

  // Of a stage: q and dy, lse and delta of their rows, and the rows of the mask.
  static constexpr int kElements = 2 * kM * kPitch;
  static constexpr int kStageBytes = kElements * 2 + kM * (2 * sizeof(float) + sizeof(const uint8_t*));
  static constexpr int kScoreBytes = kN * kScorePitch * 2;
  static constexpr int kSharedBytes = 2 * kN * kPitch * 2 + kStages * kStageBytes + kScoreBytes + 16;
};

using BackwardTile64 = BackwardTile<64, 32, 2, 2, 4>;
using BackwardTile128 = BackwardTile<128, 64, 2, 1, 8>;
using BackwardTile128Small = BackwardTile<128, 32, 1, 1, 8>;  // the same sums in 100 KiB, for GPUs that have no more
using BackwardTile256 = BackwardTile<256, 16, 1, 1, 4>;

// A tile of keys of a head, and which columns of its gradients.
struct BackwardWork {
  int64_t sequence;  // -1: none
  int tile, key_head, part;
};

// The work of the block that starts as number `index`. The tiles of keys of a head come in order, with those of up to
// 31 other heads between them.
template <class Tile>
__device__ BackwardWork backward_work(const Attention& call, int64_t index) {
  const int parts = call.key_heads * Tile::kParts;
  BackwardWork work;
  int64_t part;
  if (call.offsets_q) {
    const SequenceTile found = find_packed_tile(call, Side::keys, index / parts, Tile::kN);
    work.sequence = found.sequence, work.tile = found.tile, part = index % parts;
  } else {
    constexpr int64_t kTogether = 32;
    const int64_t all = call.sequences * parts, tiles = (call.keys + Tile::kN - 1) / Tile::kN;
    const int64_t first = index / (kTogether * tiles) * kTogether, count = min(all - first, kTogether);
    index -= first * tiles;
    work.tile = static_cast<int>(index / count);
    part = first + index % count;
    work.sequence = part / parts, part %= parts;
  }
  work.key_head = static_cast<int>(part / Tile::kParts), work.part = static_cast<int>(part % Tile::kParts);
  return work;
}

// How many tiles of keys before this one have a part in a tile of queries that it has a part in.
FUSEDOPS_HD int tiles_before(const Band& band, const Sequence& sequence, int key_tile, int kN, int first_query) {
  return key_tile - band.keys(sequence, first_query).begin / kN;
}

// The counter of a tile of dq: tiles of different sequences never share one, if the offsets are in order.
template <class Tile>
__device__ int64_t dq_counter(const Attention& call, int64_t b, const Sequence& sequence, int head, int first_query,
                              int part) {
  const int64_t tiles =
      call.offsets_q ? call.packed_queries / Tile::kM + call.sequences + 1 : (call.queries + Tile::kM - 1) / Tile::kM;
  const int64_t tile = (call.offsets_q ? sequence.first_query / Tile::kM + b : 0) + first_query / Tile::kM;
  return 1 + ((call.place(b) * call.heads + head) * tiles + tile) * Tile::kParts + part;
}

// Calls body(i, j, e, bit) for each element of a lane's scores.
template <class Tile, class Body>
__device__ void each_score(Body body) {
#pragma unroll
  for (int j = 0; j < Tile::kM / 8; ++j)
#pragma unroll
    for (int i = 0; i < Tile::kRowTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) body(i, j, e, (j * Tile::kRowTiles + i) * 4 + e);
}

// Which scores of a lane are kept, a bit for each. In loops, which take fewer registers.
template <class Tile>
__device__ uint32_t kept_scores(const Attention& call, const Sequence& sequence, int first_query, int first_key,
                                const uint8_t* const* mask_rows) {
  static_assert(Tile::kM / 8 * Tile::kRowTiles * 4 <= 32);
  uint32_t kept = 0;
#pragma unroll 1
  for (int j = 0; j < Tile::kM / 8; ++j)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int in_tile = j * 8 + fragment_column(side), query = first_query + in_tile;
      const uint8_t* const mask = call.has_mask ? mask_rows[in_tile] : nullptr;
      if (query >= sequence.queries) continue;
      const Range keys = call.band.keys(sequence, query);
#pragma unroll
      for (int i = 0; i < Tile::kRowTiles; ++i)
#pragma unroll
        for (int e = side; e < 4; e += 2) {
          const int key = first_key + i * 16 + fragment_row(e);
          if (keys.has(key) && (!mask || mask[call.mask.has_columns() ? key : 0]))
            kept |= 1u << ((j * Tile::kRowTiles + i) * 4 + e);
        }
    }
  return kept;
}

// Makes p of products s, and ds of products dp.
template <class T, class Tile>
__device__ void backward_scores(const Scores<T>& score, const float* lse, const float* delta,
                                Fragments<Tile::kRowTiles, Tile::kM / 8>& s,
                                Fragments<Tile::kRowTiles, Tile::kM / 8>& dp) {
  const auto pair = [](const float* rows, int j) {
    return *reinterpret_cast<const float2*>(rows + j * 8 + fragment_column(0));
  };
  if (!score.is_product) {
    each_score<Tile>([&](int i, int j, int e, int) {
      const float row_delta = e % 2 ? pair(delta, j).y : pair(delta, j).x;
      s[i][j][e] = score.of(s[i][j][e]);
      dp[i][j][e] = (dp[i][j][e] - row_delta) * score.slope(s[i][j][e]);
    });
  }
  each_score<Tile>([&](int i, int j, int e, int) {
    const float row_lse = e % 2 ? pair(lse, j).y : pair(lse, j).x;
    const float row_delta = e % 2 ? pair(delta, j).y : pair(delta, j).x;
    s[i][j][e] = exp2_or_zero((score.scaled(s[i][j][e]) - row_lse) * float(kLog2E));
    dp[i][j][e] = s[i][j][e] * (score.is_product ? dp[i][j][e] - row_delta : dp[i][j][e]);
  });
}

// Rounds a warp's rows of a gradient, which leave through its rows of a tile in shared memory.
template <class T, class Tile>
__device__ void store_gradient(const Fragments<Tile::kRowTiles, Tile::kOut / 8>& sums, float scale, T* tile, T* to,
                               int64_t stride, int rows, int width, bool aligned) {
#pragma unroll
  for (int i = 0; i < Tile::kRowTiles; ++i)
#pragma unroll
    for (int e = 0; e < 4; e += 2)
#pragma unroll
      for (int j = 0; j < Tile::kOut / 8; ++j)
        *reinterpret_cast<uint32_t*>(tile + (i * 16 + fragment_row(e)) * kPitchOf<Tile::kOut> + j * 8 +
                                     fragment_column(0)) =
            rounded_pair<T>(sums[i][j][e] * scale, sums[i][j][e + 1] * scale);
  __syncwarp();
  store_rows<Tile::kWarpN, Tile::kOut>(tile, to, stride, rows, width, aligned);
  __syncwarp();
}

template <class T, class Tile, bool kDropout>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    attention_backward_kernel(const __grid_constant__ Attention call, const Scores<T> score, const BackwardSums sums,
                              const bool aligned, const bool out_aligned) {
  constexpr int kD = Tile::kD, kM = Tile::kM, kN = Tile::kN, kPitch = Tile::kPitch, kOutTiles = Tile::kOut / 8;
  begin_kernel();
  extern __shared__ int4 shared[];
  T* const k = reinterpret_cast<T*>(shared);
  T* const v = k + kN * kPitch;
  T* const all_ds = v + kN * kPitch;  // [key, query]
  char* const stages = reinterpret_cast<char*>(all_ds) + Tile::kScoreBytes;
  // What one thread keeps: the block's number, then the counter of the tile of dq that was last added to.
  int** const pending = reinterpret_cast<int**>(stages + Tile::kStages * Tile::kStageBytes);
  int* const number = reinterpret_cast<int*>(pending + 1);
  if (threadIdx.x == 0) *number = take_number(sums.counters), *pending = nullptr;
  __syncthreads();
  const BackwardWork work = backward_work<Tile>(call, *number);
  if (work.sequence < 0) return;
  const int b = static_cast<int>(work.sequence), place = static_cast<int>(call.place(b));
  const Sequence sequence = call.sequence(b);
  const int first_key = work.tile * kN;
  const Range keys{first_key, min(first_key + kN, sequence.kept)};
  const Range queries = keys.is_empty() ? Range{0, 0} : call.band.queries(sequence, keys);

  // Tiles of queries, of one head after the other, from the last one to the first, so that causal ones begin where all
  // blocks of a head do.
  struct Queries {
    int head, first;
  };
  const int lowest = queries.begin / kM * kM, highest = (queries.end - 1) / kM * kM;
  const int end_head = queries.is_empty() ? 0 : (work.key_head + 1) * call.group;
  const auto after = [&](Queries tile) {
    tile.first -= kM;
    if (tile.first < lowest) tile.first = highest, ++tile.head;
    return tile;
  };

  using Copy = RowCopy<T, kD, Tile::kThreads>;
  // Starts to copy a tile of queries, if it exists, and commits.
  const auto copy_queries = [&](const Queries& tile, char* stage) {
    if (tile.head < end_head) {
      T* const q = reinterpret_cast<T*>(stage);
      T* const dy = q + kM * kPitch;
      const uint8_t** const mask_rows = reinterpret_cast<const uint8_t**>(dy + kM * kPitch);
      float* const lse = reinterpret_cast<float*>(mask_rows + kM);
      const int64_t position = sequence.first_query + tile.first;
      const int rows = sequence.queries - tile.first;
      Copy(call.q.row<const T>(place, position, tile.head), call.q.position)
          .template start<kM>(q, call.q.position, rows, call.dim, aligned);
      Copy(call.dy.row<const T>(place, position, tile.head), call.dy.position)
          .template start<kM>(dy, call.dy.position, rows, call.dim_v, aligned);
      const int i = threadIdx.x;
      if (i < kM) {
        const int row = min(i, rows - 1);
        copy_async<4>(lse + i, call.lse.row<const float>(place, position + row, tile.head), 4);
        const int64_t index = call.row(b, sequence, tile.head, tile.first + row);
        copy_async<4>(lse + kM + i, static_cast<const float*>(sums.delta) + index, 4);
        if (call.has_mask) mask_rows[i] = call.mask.row(index);
      }
    }
    commit_copies();
  };

  const int warp_row = threadIdx.x / 32 * Tile::kWarpN;
  const auto dropout = kDropout ? call.dropout.prepared<float>() : DroppedProbabilities{};
  Fragments<Tile::kRowTiles, kOutTiles> dk = {}, dv = {};
  Copy(call.k.row<const T>(place, sequence.first_key + first_key, work.key_head), call.k.position)
      .template start<kN>(k, call.k.position, keys.end - first_key, call.dim, aligned);
  Copy(call.v.row<const T>(place, sequence.first_key + first_key, work.key_head), call.v.position)
      .template start<kN>(v, call.v.position, keys.end - first_key, call.dim_v, aligned);
  char* stage = stages;
  Queries tile{work.key_head * call.group, highest};
  copy_queries(tile, stage);
#pragma unroll 1
  while (tile.head < end_head) {
    char* const next_stage = Tile::kStages == 1 || stage != stages ? stages : stages + Tile::kStageBytes;
    const Queries next = after(tile);
    const int head = tile.head, first = tile.first;
    const T* const q = reinterpret_cast<const T*>(stage);
    const T* const dy = q + kM * kPitch;
    const uint8_t* const* const mask_rows = reinterpret_cast<const uint8_t* const*>(dy + kM * kPitch);
    const float* const lse = reinterpret_cast<const float*>(mask_rows + kM);
    wait_for_copies<0>();
    __syncthreads();  // the queries have arrived, and nobody reads those of the step before, or its ds
    if constexpr (Tile::kStages == 2) copy_queries(next, next_stage);

    Fragments<Tile::kRowTiles, kM / 8> s = {}, dp = {};
    multiply<kD, AlongK<kPitch>, AlongK<kPitch>>(s, k + warp_row * kPitch, q);
    multiply<kD, AlongK<kPitch>, AlongK<kPitch>>(dp, v + warp_row * kPitch, dy);

    // Here one thread's wait for memory hides behind the other warps' products, and the additions of the step before
    // have arrived.
    int* const counter = sums.counters + dq_counter<Tile>(call, b, sequence, head, first, work.part);
    if (threadIdx.x == 0) {
      if (*pending) signal(*pending);
      *pending = counter;
    }
    if (threadIdx.x == 32) wait_for(counter, tiles_before(call.band, sequence, work.tile, kN, first));
    __syncwarp();

    const Range of_all = call.band.keys_of_all(sequence, {first, min(first + kM, sequence.queries)});
    uint32_t drawn = 0;  // a bit for each score
    if constexpr (kDropout) {
      const int64_t first_row = call.first_probability(call.row(b, sequence, head, first));
      drawn = kept_of_keys<Tile::kRowTiles, kM / 8>(dropout, first_row + first_key + warp_row, call.keys);
      each_score<Tile>(
          [&](int i, int j, int e, int bit) { dp[i][j][e] = drawn >> bit & 1 ? dp[i][j][e] * dropout.scale : 0; });
    }
    backward_scores<T, Tile>(score, lse, lse + kM, s, dp);
    if constexpr (kDropout)
      each_score<Tile>([&](int i, int j, int e, int bit) {
        if (!(drawn >> bit & 1)) s[i][j][e] = 0;
      });
    if (call.has_mask || first + kM > sequence.queries || first_key < of_all.begin || first_key + kN > of_all.end) {
      const uint32_t kept = kept_scores<Tile>(call, sequence, first, first_key + warp_row, mask_rows);
      each_score<Tile>([&](int i, int j, int e, int bit) {
        if (!(kept >> bit & 1)) s[i][j][e] = dp[i][j][e] = 0;
      });
      __syncwarp();
    }
    multiply_scores<AlongRows<kPitch>>(dv, s, dy + work.part * Tile::kOut);
#pragma unroll
    for (int i = 0; i < Tile::kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < kM / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
          *reinterpret_cast<uint32_t*>(all_ds + (warp_row + i * 16 + fragment_row(e)) * Tile::kScorePitch + j * 8 +
                                       fragment_column(0)) = rounded_pair<T>(dp[i][j][e], dp[i][j][e + 1]);
    multiply_scores<AlongRows<kPitch>>(dk, dp, q + work.part * Tile::kOut);

    __syncthreads();  // all of ds is there, nobody reads q and dy any more, and it is this block's turn to add
    if constexpr (Tile::kStages == 1) copy_queries(next, next_stage);

    const int warp = threadIdx.x / 32, row = warp % Tile::kRowGroups * 16;
    const int column = warp / Tile::kRowGroups * Tile::kColumns + work.part * Tile::kOut;
    // The first part is stored: added to zeros, it would lose its subnormal numbers.
    const bool is_first = tiles_before(call.band, sequence, work.tile, kN, first) == 0;
    Fragments<1, Tile::kColumns / 8> dq = {};
    multiply<kN, AlongRows<Tile::kScorePitch>, AlongRows<kPitch>>(dq, all_ds + row, k + column);
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      const int query = first + row + fragment_row(e);
      float* const to = sums.dq + call.row(b, sequence, head, query) * sums.pitch + column + fragment_column(0);
      if (query >= sequence.queries) continue;
#pragma unroll
      for (int j = 0; j < Tile::kColumns / 8; ++j)
        if (is_first)
          *reinterpret_cast<float2*>(to + j * 8) = {dq[0][j][e], dq[0][j][e + 1]};
        else
          add_pair(to + j * 8, dq[0][j][e], dq[0][j][e + 1]);
    }
    tile = next, stage = next_stage;
  }
  wait_for_copies<0>();
  __syncthreads();  // all additions are done, and nobody reads k and v any more
  if (threadIdx.x == 0 && *pending) signal(*pending);

  const int rows = sequence.keys - first_key - warp_row, part = work.part * Tile::kOut;
  const int64_t position = sequence.first_key + first_key + warp_row;
  T* const own = k + warp_row * kPitchOf<Tile::kOut>;
  store_gradient<T, Tile>(dk, static_cast<float>(call.scale), own,
                          call.dk.row<T>(place, position, work.key_head) + part, call.dk.position, rows,
                          call.dim - part, out_aligned);
  store_gradient<T, Tile>(dv, kDropout ? dropout.scale : 1, own, call.dv.row<T>(place, position, work.key_head) + part,
                          call.dv.position, rows, call.dim_v - part, out_aligned);
}

template <class T, class Tile, bool kDropout>
Status launch_backward(const Attention& call, const BackwardSums& sums, const Context& context) {
  const bool aligned =
      are_aligned<T>(call.q) && are_aligned<T>(call.k) && are_aligned<T>(call.v) && are_aligned<T>(call.dy);
  const int64_t blocks = most_tiles(call, Side::keys, Tile::kN) * call.key_heads * Tile::kParts;
  return launch(context, attention_backward_kernel<T, Tile, kDropout>, Grid{blocks, Tile::kThreads, Tile::kSharedBytes},
                call, Scores<T>(call), sums, aligned, are_aligned<T>(call.dk) && are_aligned<T>(call.dv));
}

template <class T, bool kDropout>
Status backward_tiles(const Attention& call, const BackwardSums& sums, const Context& context) {
  const int dim = std::max(call.dim, call.dim_v);
  if (dim <= 64) return launch_backward<T, BackwardTile64, kDropout>(call, sums, context);
  if (dim > 128) return launch_backward<T, BackwardTile256, kDropout>(call, sums, context);
  if (device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) < BackwardTile128::kSharedBytes)
    return launch_backward<T, BackwardTile128Small, kDropout>(call, sums, context);
  return launch_backward<T, BackwardTile128, kDropout>(call, sums, context);
}

template <class T, bool kDropout = false>
Status backward_mma(const Attention& call, void* workspace, const Context& context) {
  const BackwardSums sums(call, workspace);
  FUSEDOPS_TRY(begin_backward(call, sums, context));
  FUSEDOPS_TRY((backward_tiles<T, kDropout>(call, sums, context)));
  return finish_dq(call, sums, context);
}

}  // namespace fusedops::cuda
