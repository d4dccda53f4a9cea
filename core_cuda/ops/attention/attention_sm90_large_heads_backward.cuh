// Attention's backward with more than 256 features for 16 bits on compute capability 9.x.
//
// Registers have no room for a result of 512 columns beside tiles of scores. So the backward consists of plain
// products, by two kernels: the first stores tiles of p and ds, rounded, in the workspace; the second multiplies them
// with dy, q and k. These are five products in all. Sums over the chunks of a key head are in float32 and in the order
// of the queries. Limit: the tensor cores in the second kernel; in the first, which overlaps them with exponentials
// only between warpgroups, latencies.
#pragma once

#include <climits>

#include "ops/attention/attention_sm90_large_heads.cuh"

namespace fusedops::cuda::sm90 {

// The first kernel. Tiles are transposed, [keys, queries].
template <class T>
struct GradientTiles {
  static constexpr int kStages = 4, kHalf = kScoreTile / 2;
  using FeatureRing = sm90::FeatureRing<T, kStages>;
  using State = typename FeatureRing::State;
  using Tile = SwizzledTile<kScoreTile, kScoreTile>;

  struct alignas(1024) Shared {
    FeatureRing ring;
    alignas(1024) T p[Tile::kSize];
    alignas(1024) T ds[Tile::kSize];
    // Each warpgroup has its own, so that one may be ahead of the other.
    float lse[kConsumers][kScoreTile], delta[kConsumers][kScoreTile];
    const uint8_t* mask_rows[kConsumers][kScoreTile];
  };

  static __forceinline__ __device__ void produce(const LargeHeads<T>& heads, Shared& shared) {
    State state;
    ScoreTiles<T>(heads).for_each_visible([&](const ScoreTile& tile) {
      shared.ring.load(state, tile, heads.q, heads.k, heads.call.dim);
      shared.ring.load(state, tile, heads.dy, heads.v, heads.call.dim_v);
    });
  }

  static __forceinline__ __device__ void consume(const LargeHeads<T>& heads, Shared& shared) {
    const Attention& call = heads.call;
    const Scores<T>& score = heads.score;
    const ScoreTiles<T> tiles(heads);
    const int warpgroup = cutlass::canonical_warp_group_idx() - 1, thread = threadIdx.x % kWarpgroup;
    const int warp_key = warpgroup * 64 + thread / 32 * 16;  // first key of the warp in a tile
    float *const lse = shared.lse[warpgroup], *const delta = shared.delta[warpgroup];
    const uint8_t** const mask_rows = shared.mask_rows[warpgroup];
    const auto sync = [&] { cutlass::arch::NamedBarrier::sync(kWarpgroup, warpgroup); };
    const auto dropout = prepared(call.dropout);
    State state;
    tiles.for_each_visible([&](const ScoreTile& tile) {
      const Sequence sequence = call.sequence(tile.b);
      // Loaded while the products are summed.
      const int query = min(tile.first_query + thread, sequence.queries - 1);
      const int64_t row = call.row(tile.b, sequence, tile.head, query);
      const float row_lse = *call.lse.row<const float>(tile.b, query, tile.head), row_delta = heads.deltas[row];
      float s[kScoreTile / 2], dp[kScoreTile / 2];
      shared.ring.template multiply</*kRowsAreKeys=*/true>(state, call.dim, warpgroup, s);
      lse[thread] = row_lse, delta[thread] = row_delta;
      if (call.has_mask) mask_rows[thread] = call.mask.row(row);
      if (thread == 0) wait_for_bulk_reads();
      sync();  // statistics are complete, and p and ds of the previous tile have been stored

      const Range queries{tile.first_query, min(tile.first_query + kScoreTile, sequence.queries)};
      const Range of_all = call.band.keys_of_all(sequence, queries);
      const bool are_all_visible = !call.can_hide() && tile.first_query + kScoreTile <= sequence.queries &&
                                   of_all.begin <= tile.first_key && tile.first_key + kScoreTile <= of_all.end;
      uint32_t drawn[2] = {~0u, ~0u};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t words[kHalf / 4];  // p, with dropout; s becomes p times the derivative of the score
        const int first_query = tile.first_query + i * kHalf, first_key = tile.first_key + warp_key;
        const FragmentTerms<T> terms(call, tile.b, sequence, tile.head, first_query, first_key);
        const uint32_t visible = are_all_visible ? ~0u
                                                 : visible_scores<1, kHalf / 8>(call, sequence, first_query, first_key,
                                                                                mask_rows + i * kHalf, terms);
        if (call.dropout.seed) {
          const int64_t first = call.first_probability(call.row(tile.b, sequence, tile.head, first_query));
          drawn[i] = kept_of_keys<1, kHalf / 8>(dropout, first + first_key, call.keys);
        }
        const auto differentiate = [&](auto is_product) {
#pragma unroll
          for (int j = 0; j < kHalf / 4; ++j) {  // pairs of adjacent queries
            float* const pair = s + (i * kHalf / 4 + j) * 2;
            const float2 of_rows = *reinterpret_cast<const float2*>(lse + i * kHalf + j / 2 * 8 + fragment_column(0));
            float p[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const float row_lse = e ? of_rows.y : of_rows.x;
              if constexpr (is_product) {
                p[e] = exp2_or_zero((score.scaled(pair[e]) - row_lse) * float(kLog2E));
              } else {
                const float own = score.of(pair[e]);
                const float term = terms(j / 2 * 8 + fragment_column(e), fragment_row(j % 2 * 2));
                p[e] = exp2_or_zero(at_most_zero((score.scaled(own + term) - row_lse) * float(kLog2E)));
                pair[e] = score.slope(own);
              }
              if (!(visible >> (2 * j + e) & 1)) p[e] = 0;
              pair[e] = is_product || p[e] == 0 ? p[e] : p[e] * pair[e];
            }
            words[j] = rounded_pair<T>(p[0], p[1]);
            if (!is_product && j % 4 == 3) __syncwarp();  // later loads of a bias stay behind, to save registers
          }
        };
        if (score.is_product)
          differentiate(std::true_type{});
        else
          differentiate(std::false_type{});
        if (call.dropout.seed)
#pragma unroll
          for (int j = 0; j < kHalf / 2; ++j)
            words[j / 2] &= drawn[i] >> j & 1 ? ~0u : j % 2 ? 0x0000ffffu : 0xffff0000u;
        store_fragment<Tile>(shared.p + warp_key * Tile::kPanel, i * kHalf, words);
      }

      shared.ring.template multiply</*kRowsAreKeys=*/true>(state, call.dim_v, warpgroup, dp);
      if (call.dropout.seed)
#pragma unroll
        for (int i = 0; i < kScoreTile / 2; ++i) dp[i] = drawn[i / 32] >> i % 32 & 1 ? dp[i] * dropout.scale : 0;
#pragma unroll
      for (int i = 0; i < kScoreTile / 2; ++i) {
        const float2 of_rows = *reinterpret_cast<const float2*>(delta + i / 4 * 8 + fragment_column(0));
        const float difference = dp[i] - (i % 2 ? of_rows.y : of_rows.x);
        dp[i] = s[i] != 0 ? s[i] * difference : 0;  // a hidden pair may have a NaN
      }
      uint32_t words[kScoreTile / 4];
      round_to<T>(words, dp);
      store_fragment<Tile>(shared.ds + warp_key * Tile::kPanel, 0, words);
      cutlass::arch::fence_view_async_shared();
      sync();  // p and ds are complete, and statistics have been read
      if (thread == 0) {
        store_score_rows(tiles.elements(tiles.chunks.p, tile), shared.p, warpgroup);
        store_score_rows(tiles.elements(tiles.chunks.ds, tile), shared.ds, warpgroup);
        commit_bulk();
      }
    });
    if (thread == 0) wait_for_bulk();
  }
};

enum class Gradient { dk, dv, dq };

// The work of a block of the second kernel.
struct GradientWork {
  // Finds it; false if there is none. Long sums come first: with causality those of the first keys and of the last
  // queries.
  template <class T>
  __device__ bool find(const LargeHeads<T>& heads) {
    const ScoreTiles<T> tiles(heads);
    const Attention& call = heads.call;
    const int of_dk = ScoreChunks::parts(call.dim), of_dv = ScoreChunks::parts(call.dim_v), of_all = 2 * of_dk + of_dv;
    const int of_level = of_all * tiles.chunk.units, level = static_cast<int>(blockIdx.x) / of_level;
    const int in_level = static_cast<int>(blockIdx.x) % of_level;
    unit = in_level / of_all, part = in_level % of_all;
    sequence = tiles.sequence(unit);
    int in_gradient = part;
    if (part < of_dk + of_dv) {
      if (level >= tiles.chunks.key_tiles) return false;
      gradient = part < of_dk ? Gradient::dk : Gradient::dv;
      if (part >= of_dk) in_gradient -= of_dk;
      tile = level;
      others = tiles.visible_rows(sequence, level);
    } else {
      if (level >= tiles.rows) return false;
      gradient = Gradient::dq;
      in_gradient -= of_dk + of_dv;
      tile = tiles.chunk.rows.end - 1 - level;
      others = tiles.visible_keys(sequence, tile);
    }
    columns = ScoreChunks::columns(gradient == Gradient::dv ? call.dim_v : call.dim);
    column = in_gradient * columns;
    return true;
  }

  Gradient gradient;
  int unit, tile;       // tile: of keys, or for dq the row of tiles
  int part;             // of all columns of dk and dv
  int column, columns;  // the first one, and the width of the tile
  Sequence sequence;
  Range others;  // rows of tiles, or for dq tiles of keys
};

// The second kernel: a block has kColumns columns of a tile of dk, dv or dq.
template <class T, int kColumns>
struct GradientProducts {
  using PositionRing = sm90::PositionRing<T, kColumns>;
  using Right = typename PositionRing::Right;
  using State = typename PositionRing::State;

  struct alignas(1024) Shared {
    PositionRing ring;
  };

  using Work = GradientWork;

  static __device__ ScoreTile tile_of(const ScoreTiles<T>& tiles, const Work& work, int other) {
    return work.gradient == Gradient::dq ? tiles.at(work.unit, work.tile, other)
                                         : tiles.at(work.unit, other, work.tile);
  }

  static __forceinline__ __device__ void produce(const LargeHeads<T>& heads, Shared& shared, const Work& work) {
    if (threadIdx.x != 0) return;
    const ScoreTiles<T> tiles(heads);
    const bool is_dq = work.gradient == Gradient::dq;
    const CUtensorMap& rows = is_dq ? heads.k : work.gradient == Gradient::dk ? heads.q : heads.dy;
    void* const scores = work.gradient == Gradient::dv ? tiles.chunks.p : tiles.chunks.ds;
    State state;
#pragma unroll 1
    for (int other = work.others.begin; other < work.others.end; ++other) {
      const ScoreTile tile = tile_of(tiles, work, other);
#pragma unroll 1
      for (int i = 0; i < kScoreTile / kDepth; ++i)
        shared.ring.load(state, tiles.elements(scores, tile), i, /*is_transposed=*/is_dq, rows, work.column,
                         is_dq ? tile.first_key : tile.first_query, is_dq ? tile.key_head : tile.head, tile.b);
    }
  }

  static __forceinline__ __device__ void consume(const LargeHeads<T>& heads, Shared& shared, const Work& work) {
    const Attention& call = heads.call;
    const ScoreTiles<T> tiles(heads);
    const int thread = threadIdx.x - kWarpgroup, warpgroup = cutlass::canonical_warp_group_idx() - 1;
    const auto right = Right::columns(shared.ring.right);
    const int steps = (work.others.end - work.others.begin) * (kScoreTile / kDepth);
    State state;
    float sums[kColumns / 2];
    const bool is_dq = work.gradient == Gradient::dq, is_dv = work.gradient == Gradient::dv;
    const auto multiply = [&](const auto& left, auto&& prepare) {
      if (steps > 0) {
        accumulate<T>(shared.ring.ring, state, steps, sums, [&](int stage, int step) {
          prepare(stage, step);
          return std::pair{left + stage * line_offset<kDepth>(kScoreTile), right + stage * Right::kOffset};
        });
      } else {
#pragma unroll
        for (float& sum : sums) sum = 0;
      }
    };
    if (is_dq) {
      const int valid = call.lengths.data ? work.sequence.valid_keys - work.others.begin * kScoreTile : INT_MAX;
      multiply(SwizzledTile<kDepth, kScoreTile>::columns(shared.ring.left, warpgroup * 64),
               [&](int stage, int step) { shared.ring.clear_invalid(stage, valid - step * kDepth); });
    } else {
      multiply(SwizzledTile<kScoreTile, kDepth>::rows(shared.ring.left, warpgroup * 64), [](int, int) {});
      if (!add_chunks(tiles, work, thread, sums)) return;
    }
    cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 0);  // all stages have been read
    const ScoreTile tile = tile_of(tiles, work, 0);
    const HeadRows& result = is_dq ? call.dq : is_dv ? call.dv : call.dk;
    const int first = is_dq ? tile.first_query : tile.first_key;
    const int count = (is_dq ? work.sequence.queries : work.sequence.keys) - first;
    const auto scale = static_cast<float>(is_dv ? call.dropout.scale : call.scale);
    const float factors[2] = {scale, scale};
    T* const rows = result.row<T>(tile.b, first, is_dq ? tile.head : tile.key_head) + work.column;
    store_rows<typename PositionRing::Result>(thread / 32 * 16, 0, factors, sums, shared.ring.right[0], count,
                                              (is_dv ? call.dim_v : call.dim) - work.column,
                                              [&](int row) { return rows + row * result.position; });
  }

  // Adds the sums of earlier chunks to dk or dv. Stores them and returns false if another chunk follows.
  static __forceinline__ __device__ bool add_chunks(const ScoreTiles<T>& tiles, const Work& work, int thread,
                                                    float (&sums)[kColumns / 2]) {
    constexpr int kThreads = kConsumers * kWarpgroup;
    const int64_t parts = ScoreChunks::parts(tiles.call.dim) + ScoreChunks::parts(tiles.call.dim_v);
    float4* const stored = reinterpret_cast<float4*>(tiles.chunks.sums) +
                           (work.tile * parts + work.part) * (ScoreChunks::kSums / 4) + thread;
    if (tiles.chunk.rows.begin > 0)
#pragma unroll
      for (int i = 0; i < kColumns / 2; i += 4) {
        const float4 four = stored[i / 4 * kThreads];
        sums[i] += four.x, sums[i + 1] += four.y, sums[i + 2] += four.z, sums[i + 3] += four.w;
      }
    if (tiles.chunk.rows.end == tiles.chunks.rows) return true;
#pragma unroll
    for (int i = 0; i < kColumns / 2; i += 4)
      stored[i / 4 * kThreads] = make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
    return false;
  }
};

template <class T>
Status large_heads_backward(const Attention& call, void* workspace, const Context& context) {
  const BackwardSums sums(call, workspace);
  FUSEDOPS_TRY(begin_backward(call, sums, context));
  LargeHeads<T> heads{.call = call,
                      .score = Scores<T>(call),
                      .chunks = ScoreChunks(call, /*is_backward=*/true, static_cast<char*>(workspace) + sums.size),
                      .deltas = static_cast<const float*>(sums.delta)};
  const int parts = 2 * ScoreChunks::parts(call.dim) + ScoreChunks::parts(call.dim_v);
  FUSEDOPS_TRY((launch_large_heads<GradientTiles, GradientProducts>(heads, context, [&](int units, int rows) {
    return int64_t(std::max(heads.chunks.key_tiles, rows)) * units * parts;
  })));
  if (!call.dbias) return {};
  return attention_dbias(call, {sums.delta, int64_t(call.heads) * call.queries, 1, call.queries}, context);
}

}  // namespace fusedops::cuda::sm90
