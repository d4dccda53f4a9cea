// Attention's backward with mma, compute capability 8.0 and later.
//
// A block has a tile of keys of one head and accumulates its dk and dv in registers. It loops over the query heads that
// share the key head, and over their tiles of queries that see the keys. A group of one or two warps owns rows of keys.
// Each warp computes p^T and ds^T of its own queries, which are in the operand layout of p^T dy and ds^T q. Two warps
// of a group exchange them, and each sums half of the columns. All warps share ds, for dq = ds k.
//
// dq is summed in the workspace in the order of the keys, by semaphores: the block with the first keys stores, the
// others add. This order costs little: blocks with the same keys of many heads start together, and those with the next
// keys follow one tile of queries behind.
//
// Limit: the tensor cores, and reads of shared memory. A warp with 32 keys and 32 queries reads three quarters as much
// as one with 16 keys and 64 queries. Registers allow at most 8 warps, so that exponentials, copies and the serial work
// of one warp are not fully hidden.
#pragma once

#include "core/cuda/launch.cuh"
#include "core/cuda/ordered.cuh"
#include "ops/attention/attention_dq.cuh"
#include "ops/attention/attention_fragments.cuh"
#include "ops/attention/attention_kernels.h"
#include "ops/attention/attention_sm80_dropout.cuh"

namespace fusedops::cuda {

// Tile of kM queries and kN keys. A block computes kOut columns of the gradients, as many as registers allow; another
// block computes the rest.
template <int kD_, int kM_, int kRowTiles_, int kGroups_, int kGroupWarps_>
struct BackwardTile {
  static constexpr int kD = kD_, kM = kM_;
  static constexpr int kRowTiles = kRowTiles_;  // of 16 keys per group
  static constexpr int kGroups = kGroups_, kGroupWarps = kGroupWarps_, kWarps = kGroups * kGroupWarps;
  static constexpr int kThreads = 32 * kWarps, kBlocks = 8 / kWarps;
  static constexpr int kGroupN = 16 * kRowTiles, kN = kGroupN * kGroups;
  static constexpr int kOut = kD < 128 ? kD : 128, kParts = kD / kOut;
  static constexpr int kPitch = kPitchOf<kD>, kScorePitch = kPitchOf<kM>;

  // Queries per warp, in steps of kStep, and columns of dk and dv per warp.
  static constexpr int kWarpM = kM / kGroupWarps, kStep = kWarpM * kRowTiles < 64 ? kWarpM : 64 / kRowTiles;
  static constexpr int kWarpOut = kOut / kGroupWarps;

  // 16-row tiles and columns of dq per warp.
  static constexpr int kDqRowTiles = kM < 64 ? 1 : 2;
  static constexpr int kRowGroups = kM / 16 / kDqRowTiles, kColumns = kOut * kRowGroups / kWarps;
  static_assert(BackwardSums::kTile % kM == 0 && kM >= BackwardSums::kMinTile);
  static_assert(kParts <= BackwardSums::kMaxParts && kGroupWarps <= 2 && kColumns % 32 == 0);

  // Memory of a tile of queries: q, dy, lse, delta and pointers to mask rows.
  static constexpr int kElements = 2 * kM * kPitch;
  static constexpr int kQueryBytes = kElements * 2 + kM * (2 * sizeof(float) + sizeof(const uint8_t*));
  static constexpr int kScores = kN * kScorePitch;
  static constexpr int kScoreBytes = kScores * 2 * kGroupWarps;  // ds, and p if the warps of a group exchange it
  static constexpr int kSharedBytes = 2 * kN * kPitch * 2 + kQueryBytes + kScoreBytes + 16;
};

using BackwardTile64 = BackwardTile<64, 64, 2, 4, 1>;
using BackwardTile128 = BackwardTile<128, 64, 2, 4, 2>;
using BackwardTile128Small = BackwardTile<128, 32, 1, 8, 1>;  // for GPUs with 100 KiB of shared memory
using BackwardTile256 = BackwardTile<256, 16, 1, 4, 1>;

// Work tile: a tile of keys of a key head, and part of the columns of its gradients.
struct BackwardWork {
  int64_t sequence;  // -1: none
  int tile, key_head, part;
};

// The work tile of the block that starts as number `index`. Tiles of keys of a head are in order, interleaved with
// those of up to 31 other heads.
template <class Tile>
__device__ BackwardWork backward_work(const Attention& call, int64_t index) {
  const int parts = call.key_heads * Tile::kParts;
  BackwardWork work;
  int64_t part;
  if (call.offsets_q) {
    const SequenceTile found = find_packed_tile(call, Side::keys, index / parts, Tile::kN);
    work.sequence = found.sequence, work.tile = found.tile, part = index % parts;
  } else {
    constexpr int64_t kInterleavedHeads = 32;
    const int64_t all = call.sequences * parts, tiles = (call.keys + Tile::kN - 1) / Tile::kN;
    const int64_t first = index / (kInterleavedHeads * tiles) * kInterleavedHeads,
                  count = min(all - first, kInterleavedHeads);
    index -= first * tiles;
    work.tile = static_cast<int>(index / count);
    part = first + index % count;
    work.sequence = part / parts, part %= parts;
  }
  work.key_head = static_cast<int>(part / Tile::kParts), work.part = static_cast<int>(part % Tile::kParts);
  return work;
}

// The number of earlier tiles of keys that add to a tile of dq.
FUSEDOPS_HD int earlier_key_tiles(const Band& band, const Sequence& sequence, int key_tile, int kN, int first_query) {
  return key_tile - band.keys(sequence, first_query).begin / kN;
}

// Calls body(i, j, e, bit) for each element of a lane's scores.
template <int kRowTiles, int kColumnTiles, class Body>
__device__ void each_score(Body body) {
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j)
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) body(i, j, e, (j * kRowTiles + i) * 4 + e);
}

// Bits of a lane's scores, 1 if visible. Not fully unrolled, to save registers.
template <int kRowTiles, int kColumnTiles, class Terms>
__device__ uint32_t visible_scores(const Attention& call, const Sequence& sequence, int first_query, int first_key,
                                   const uint8_t* const* mask_rows, const Terms& terms) {
  static_assert(kColumnTiles * kRowTiles * 4 <= 32);
  uint32_t visible = 0;
#pragma unroll 1
  for (int j = 0; j < kColumnTiles; ++j)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int in_tile = j * 8 + fragment_column(side), query = first_query + in_tile;
      const uint8_t* const mask = call.has_mask ? mask_rows[in_tile] : nullptr;
      if (query >= sequence.queries) continue;
      const Range keys = call.band.keys(sequence, query);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int e = side; e < 4; e += 2) {
          const int row = i * 16 + fragment_row(e), key = first_key + row;
          if (keys.has(key) && (!mask || mask[call.mask.has_columns() ? key : 0]) && !terms.hides(in_tile, row))
            visible |= 1u << ((j * kRowTiles + i) * 4 + e);
        }
    }
  return visible;
}

// Replaces products s by p, and products dp by ds. terms(query, key) is added to a score.
template <class T, int kRowTiles, int kColumnTiles, class Terms>
__device__ void backward_scores(const Scores<T>& score, const float* lse, const float* delta, const Terms& terms,
                                Fragments<kRowTiles, kColumnTiles>& s, Fragments<kRowTiles, kColumnTiles>& dp) {
  const auto of_row = [](const float* rows, int j, int e) {
    const float2 pair = *reinterpret_cast<const float2*>(rows + j * 8 + fragment_column(0));
    return e % 2 ? pair.y : pair.x;
  };
  const auto share = [&](float scaled, float row_lse) {
    const float exponent = (scaled - row_lse) * float(kLog2E);
    return exp2_or_zero(std::is_same_v<Terms, NoTerms> ? exponent : at_most_zero(exponent));
  };
  if (score.is_product) {
    each_score<kRowTiles, kColumnTiles>([&](int i, int j, int e, int) {
      s[i][j][e] = share(score.scaled(s[i][j][e]), of_row(lse, j, e));
      dp[i][j][e] = s[i][j][e] * (dp[i][j][e] - of_row(delta, j, e));
    });
  } else {
    each_score<kRowTiles, kColumnTiles>([&](int i, int j, int e, int) {
      const float own = score.of(s[i][j][e]);
      s[i][j][e] =
          share(score.scaled(own + terms(j * 8 + fragment_column(e), i * 16 + fragment_row(e))), of_row(lse, j, e));
      dp[i][j][e] = s[i][j][e] * ((dp[i][j][e] - of_row(delta, j, e)) * score.slope(own));
    });
  }
}

// Replaces products s = k q^T of a warp by p, with dropout, and products dp = v dy^T by ds. lse, delta and mask_rows
// begin at the first query.
template <bool kGeneral, class T, int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void differentiate(const Attention& call, const Scores<T>& score,
                                              const DroppedProbabilities& dropout, int64_t b, const Sequence& sequence,
                                              int head, int first_query, int first_key, const float* lse,
                                              const float* delta, const uint8_t* const* mask_rows, bool are_all_visible,
                                              Fragments<kRowTiles, kColumnTiles>& s,
                                              Fragments<kRowTiles, kColumnTiles>& dp) {
  const bool drops = kGeneral && call.dropout.seed;
  uint32_t drawn = 0;  // one bit per score
  if (drops) {
    const int64_t first_row = call.first_probability(call.row(b, sequence, head, first_query));
    drawn = kept_of_keys<kRowTiles, kColumnTiles>(dropout, first_row + first_key, call.keys);
    each_score<kRowTiles, kColumnTiles>(
        [&](int i, int j, int e, int bit) { dp[i][j][e] = drawn >> bit & 1 ? dp[i][j][e] * dropout.scale : 0; });
  }
  const auto terms = [&] {
    if constexpr (kGeneral)
      return FragmentTerms<T>(call, b, sequence, head, first_query, first_key);
    else
      return NoTerms();
  }();
  if (kGeneral && call.has_terms())
    backward_scores<T>(score, lse, delta, terms, s, dp);
  else
    backward_scores<T>(score, lse, delta, NoTerms(), s, dp);
  if (drops)
    each_score<kRowTiles, kColumnTiles>([&](int i, int j, int e, int bit) {
      if (!(drawn >> bit & 1)) s[i][j][e] = 0;
    });
  if (are_all_visible) return;
  const uint32_t visible =
      visible_scores<kRowTiles, kColumnTiles>(call, sequence, first_query, first_key, mask_rows, terms);
  each_score<kRowTiles, kColumnTiles>([&](int i, int j, int e, int bit) {
    if (!(visible >> bit & 1)) s[i][j][e] = dp[i][j][e] = 0;
  });
  __syncwarp();
}

// Stores rounded scores to a tile in shared memory.
template <class T, int kPitch, int kRowTiles, int kColumnTiles>
__device__ void store_scores(const Fragments<kRowTiles, kColumnTiles>& scores, T* to) {
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j)
#pragma unroll
      for (int e = 0; e < 4; e += 2)
        *reinterpret_cast<uint32_t*>(to + (i * 16 + fragment_row(e)) * kPitch + j * 8 + fragment_column(0)) =
            rounded_pair<T>(scores[i][j][e], scores[i][j][e + 1]);
}

// Stores a warp's rows of a result, rounded, through its own rows of a tile in shared memory.
template <class T, int kRowTiles, int kColumnTiles>
__device__ void store_result(Fragments<kRowTiles, kColumnTiles>& sums, float scale, T* tile, T* to, int64_t stride,
                             int rows, int width, bool aligned) {
  constexpr int kColumns = 8 * kColumnTiles;
  each_score<kRowTiles, kColumnTiles>([&](int i, int j, int e, int) { sums[i][j][e] *= scale; });
  store_scores<T, kPitchOf<kColumns>>(sums, tile);
  __syncwarp();
  store_rows<16 * kRowTiles, kColumns>(tile, to, stride, rows, width, aligned);
  __syncwarp();
}

// Makes a value warp-uniform for the compiler, which then keeps derived values in uniform registers.
template <class X>
__device__ X uniform(X x) {
  return __shfl_sync(~0u, x, 0);
}

template <class T, class Tile, bool kGeneral>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    attention_backward_kernel(const __grid_constant__ Attention call, const Scores<T> score, const BackwardSums sums,
                              const bool aligned, const bool out_aligned) {
  constexpr int kD = Tile::kD, kM = Tile::kM, kN = Tile::kN, kPitch = Tile::kPitch, kScorePitch = Tile::kScorePitch;
  constexpr int kRowTiles = Tile::kRowTiles, kWarpM = Tile::kWarpM, kStep = Tile::kStep, kStepTiles = kStep / 8;
  begin_kernel();
  extern __shared__ int4 shared[];
  T* const k = reinterpret_cast<T*>(shared);
  T* const v = k + kN * kPitch;
  T* const all_ds = v + kN * kPitch;  // [key, query]
  T* const all_p = all_ds + (Tile::kGroupWarps - 1) * Tile::kScores;
  T* const q = all_p + Tile::kScores;
  T* const dy = q + kM * kPitch;
  const uint8_t** const mask_rows = reinterpret_cast<const uint8_t**>(dy + kM * kPitch);
  float* const lse = reinterpret_cast<float*>(mask_rows + kM);
  int* const number = reinterpret_cast<int*>(lse + 2 * kM);
  if (threadIdx.x == 0) *number = take_number(sums.semaphores);
  __syncthreads();
  const BackwardWork work = backward_work<Tile>(call, uniform(*number));
  if (work.sequence < 0) return;
  const int b = uniform(static_cast<int>(work.sequence)), batch = static_cast<int>(call.batch_index(b));
  const int key_tile = uniform(work.tile), key_head = uniform(work.key_head), part = uniform(work.part);
  Sequence sequence = call.sequence(b);
  sequence = {uniform(sequence.first_query), uniform(sequence.first_key),  uniform(sequence.queries),
              uniform(sequence.keys),        uniform(sequence.valid_keys), uniform(sequence.shift)};
  const int first_key = key_tile * kN;
  const Range keys{first_key, min(first_key + kN, sequence.valid_keys)};
  const Range queries = keys.is_empty() ? Range{0, 0} : call.band.queries(sequence, keys);

  // Iterates over heads, and over their tiles of queries from the last to the first: with causality all blocks of a
  // head see the last one.
  struct Queries {
    int head, first;
  };
  const int lowest = queries.begin / kM * kM, highest = (queries.end - 1) / kM * kM;
  const int end_head = queries.is_empty() ? 0 : (key_head + 1) * call.group;
  const auto after = [&](Queries tile) {
    tile.first -= kM;
    if (tile.first < lowest) tile.first = highest, ++tile.head;
    return tile;
  };

  using Copy = RowCopy<T, kD, Tile::kThreads>;
  Queries tile{key_head * call.group, highest};
  Copy copy_q(call.q.row<const T>(batch, sequence.first_query + highest, tile.head), call.q.position);
  Copy copy_dy(call.dy.row<const T>(batch, sequence.first_query + highest, tile.head), call.dy.position);
  const bool is_whole = aligned && call.dim == kD && call.dim_v == kD;
  // Starts to copy the tile of queries at which copy_q and copy_dy are.
  const auto copy_queries = [&](const Queries& tile) {
    const int rows = sequence.queries - tile.first;
    if (is_whole && rows >= kM) {
      copy_q.template start_whole<kM>(q, call.q.position);
      copy_dy.template start_whole<kM>(dy, call.dy.position);
    } else {
      copy_q.template start<kM>(q, call.q.position, rows, call.dim, aligned);
      copy_dy.template start<kM>(dy, call.dy.position, rows, call.dim_v, aligned);
    }
    const int i = static_cast<int>(threadIdx.x) - (Tile::kThreads - kM);
    if (i >= 0) {
      const int row = min(i, rows - 1);
      copy_async<4>(lse + i, call.lse.row<const float>(batch, sequence.first_query + tile.first + row, tile.head), 4);
      const int64_t index = call.row(b, sequence, tile.head, tile.first + row);
      copy_async<4>(lse + kM + i, static_cast<const float*>(sums.delta) + index, 4);
      if (call.has_mask) mask_rows[i] = call.mask.row(index);
    }
  };

  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const int group = warp / Tile::kGroupWarps, in_group = warp % Tile::kGroupWarps;
  const int group_row = group * Tile::kGroupN, first_column = in_group * Tile::kWarpOut + part * Tile::kOut;
  const auto dropout = kGeneral ? prepared(call.dropout) : DroppedProbabilities{};
  Fragments<kRowTiles, Tile::kWarpOut / 8> dk = {}, dv = {};
  Copy(call.k.row<const T>(batch, sequence.first_key + first_key, key_head), call.k.position)
      .template start<kN>(k, call.k.position, keys.end - first_key, call.dim, aligned);
  Copy(call.v.row<const T>(batch, sequence.first_key + first_key, key_head), call.v.position)
      .template start<kN>(v, call.v.position, keys.end - first_key, call.dim_v, aligned);
  if (tile.head < end_head) copy_queries(tile);
  commit_copies();
  int* last_semaphore = nullptr;  // of the tile of dq that was added to last
#pragma unroll 1
  while (tile.head < end_head) {
    const int head = tile.head, first = tile.first;
    wait_for_copies<0>();
    __syncthreads();  // the queries have arrived, and the previous ds has been read

    const int64_t dq_row = BackwardSums::dq_row(call, b, sequence, head) + first;
    int* const semaphore = sums.semaphores + 1 + dq_row / kM * Tile::kParts + part;
    const int before = earlier_key_tiles(call.band, sequence, key_tile, kN, first);
    const Range of_all = call.band.keys_of_all(sequence, {first, min(first + kM, sequence.queries)});
    const bool are_all_visible = !call.has_mask && !(kGeneral && call.bias.is_given()) &&
                                 first + kM <= sequence.queries && of_all.begin <= first_key &&
                                 first_key + kN <= of_all.end;
    // The additions to the previous tile of dq have been issued. The warp that signals waits for memory; its products
    // then overlap with the exponentials of the others.
    if (threadIdx.x == 0 && last_semaphore) signal(last_semaphore);
    __syncwarp();
#pragma unroll 1
    for (int step = kWarpM - kStep; step >= 0; step -= kStep) {  // from the last to the first, as the tiles
      const int in_tile = in_group * kWarpM + step;
      Fragments<kRowTiles, kStepTiles> s = {}, dp = {};
      multiply<kD, AlongK<kPitch>, AlongK<kPitch>>(s, k + group_row * kPitch, q + in_tile * kPitch);
      multiply<kD, AlongK<kPitch>, AlongK<kPitch>>(dp, v + group_row * kPitch, dy + in_tile * kPitch);
      differentiate<kGeneral>(call, score, dropout, b, sequence, head, first + in_tile, first_key + group_row,
                              lse + in_tile, lse + kM + in_tile, mask_rows + in_tile, are_all_visible, s, dp);
      const int own_scores = group_row * kScorePitch + in_tile;
      if constexpr (Tile::kGroupWarps > 1) store_scores<T, kScorePitch>(s, all_p + own_scores);
      if constexpr (Tile::kGroupWarps > 1) store_scores<T, kScorePitch>(dp, all_ds + own_scores);
      multiply_scores<AlongRows<kPitch>>(dv, s, dy + in_tile * kPitch + first_column);
      if constexpr (Tile::kGroupWarps == 1) store_scores<T, kScorePitch>(dp, all_ds + own_scores);
      multiply_scores<AlongRows<kPitch>>(dk, dp, q + in_tile * kPitch + first_column);
    }
    if constexpr (Tile::kGroupWarps > 1) {
      asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(32 * Tile::kGroupWarps) : "memory");
      const int in_tile = (1 - in_group) * kWarpM, others = group_row * kScorePitch + in_tile;
      multiply<kWarpM, AlongK<kScorePitch>, AlongRows<kPitch>>(dv, all_p + others,
                                                               dy + in_tile * kPitch + first_column);
      multiply<kWarpM, AlongK<kScorePitch>, AlongRows<kPitch>>(dk, all_ds + others,
                                                               q + in_tile * kPitch + first_column);
    }
    last_semaphore = semaphore;
    int done = before == 0 ? 0 : peek(semaphore);
    __syncthreads();  // ds is complete, and q and dy have been read

    tile = after(tile);
    if (tile.head < end_head) {
      copy_q.advance((tile.first - first) * call.q.position + (tile.head - head) * call.q.head);
      copy_dy.advance((tile.first - first) * call.dy.position + (tile.head - head) * call.dy.head);
      copy_queries(tile);
    }
    commit_copies();
    const int row = warp % Tile::kRowGroups * 16 * Tile::kDqRowTiles;
    const int column = warp / Tile::kRowGroups * Tile::kColumns + part * Tile::kOut;
    Fragments<Tile::kDqRowTiles, Tile::kColumns / 8> dq = {};
    multiply<kN, AlongRows<kScorePitch>, AlongRows<kPitch>>(dq, all_ds + row, k + column);
    while (done < before) done = peek(semaphore);
#pragma unroll
    for (int i = 0; i < Tile::kDqRowTiles; ++i) {
      const DqFragment to(sums, dq_row + row + i * 16, column);
      // The first tile is stored: atomic additions would flush its subnormal numbers.
      if (before == 0) {
#pragma unroll
        for (int j = 0; j < Tile::kColumns / 8; ++j) to.store(j, dq[i][j]);
      } else {
#pragma unroll
        for (int j = 0; j < Tile::kColumns / 8; ++j) to.add(j, dq[i][j]);
      }
    }
  }
  wait_for_copies<0>();
  __syncthreads();  // all additions have been issued, and k and v have been read
  if (threadIdx.x == 0 && last_semaphore) signal(last_semaphore);

  const int rows = sequence.keys - first_key - group_row;
  const int64_t position = sequence.first_key + first_key + group_row;
  T* const own = k + warp * Tile::kGroupN * kPitchOf<Tile::kWarpOut>;
  store_result(dk, static_cast<float>(call.scale), own, call.dk.row<T>(batch, position, key_head) + first_column,
               call.dk.position, rows, call.dim - first_column, out_aligned);
  store_result(dv, kGeneral ? dropout.scale : 1, own, call.dv.row<T>(batch, position, key_head) + first_column,
               call.dv.position, rows, call.dim_v - first_column, out_aligned);
}

template <class T, class Tile, bool kGeneral>
Status launch_backward(const Attention& call, const BackwardSums& sums, const Context& context) {
  const bool aligned =
      are_aligned<T>(call.q) && are_aligned<T>(call.k) && are_aligned<T>(call.v) && are_aligned<T>(call.dy);
  const int64_t blocks = most_tiles(call, Side::keys, Tile::kN) * call.key_heads * Tile::kParts;
  return launch(context, attention_backward_kernel<T, Tile, kGeneral>, Grid{blocks, Tile::kThreads, Tile::kSharedBytes},
                call, Scores<T>(call), sums, aligned, are_aligned<T>(call.dk) && are_aligned<T>(call.dv));
}

template <class T, bool kGeneral>
Status backward_tiles(const Attention& call, const BackwardSums& sums, const Context& context) {
  const int dim = std::max(call.dim, call.dim_v);
  if (dim <= 64) return launch_backward<T, BackwardTile64, kGeneral>(call, sums, context);
  if (dim > 128) return launch_backward<T, BackwardTile256, kGeneral>(call, sums, context);
  if (device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) < BackwardTile128::kSharedBytes)
    return launch_backward<T, BackwardTile128Small, kGeneral>(call, sums, context);
  return launch_backward<T, BackwardTile128, kGeneral>(call, sums, context);
}

template <class T, bool kGeneral = false>
Status sm80_backward(const Attention& call, void* workspace, const Context& context) {
  const BackwardSums sums(call, workspace);
  FUSEDOPS_TRY(begin_backward(call, sums, context));
  FUSEDOPS_TRY((backward_tiles<T, kGeneral>(call, sums, context)));
  if (call.dbias)
    FUSEDOPS_TRY(attention_dbias(call, {sums.delta, int64_t(call.heads) * call.queries, 1, call.queries}, context));
  return finish_dq(call, sums, context);
}

}  // namespace fusedops::cuda
