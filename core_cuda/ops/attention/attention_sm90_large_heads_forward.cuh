// The forward of attention_sm90_large_heads.cuh. The first kernel computes tiles of probabilities, with the maximum and
// the sum of each row of a tile. The second finds the maximum of the whole row and multiplies the probabilities with v.
//
// Probabilities of a row of a tile are relative to its maximum. The factor from it to the maximum of the whole row is a
// power of two, which is exact for probabilities, times a rest in (1/2, 1], to which y is relative until the next tile.
// Limit: the tensor cores.
#pragma once

#include "ops/attention/attention_sm90_large_heads.cuh"

namespace fusedops::cuda::sm90 {

// 2^exponent, with an integer exponent of at most 0.
__device__ inline float power_of_two(float exponent) {
  return exponent < -126 ? 0 : __int_as_float((127 + static_cast<int>(exponent)) << 23);
}

// The product of two pairs of elements.
template <class T>
__device__ uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t product;
  if constexpr (std::is_same_v<T, f16>)
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  else
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// The first kernel. Tiles are [queries, keys].
template <class T>
struct ProbabilityTiles {
  static constexpr int kStages = 6;
  using FeatureRing = sm90::FeatureRing<T, kStages>;
  using State = typename FeatureRing::State;
  using Tile = SwizzledTile<kScoreTile, kScoreTile>;

  // For mask_scores(): scores of a warp.
  static constexpr int kRowTiles = 1, kN = kScoreTile;

  struct alignas(1024) Shared {
    FeatureRing ring;
    alignas(1024) T p[Tile::kSize];
    const uint8_t* mask_rows[kScoreTile];
  };

  static __forceinline__ __device__ void produce(const LargeHeads<T>& heads, Shared& shared) {
    State state;
    ScoreTiles<T>(heads).for_each_visible(
        [&](const ScoreTile& tile) { shared.ring.load(state, tile, heads.q, heads.k, heads.call.dim); });
  }

  static __forceinline__ __device__ void consume(const LargeHeads<T>& heads, Shared& shared) {
    const Attention& call = heads.call;
    const Scores<T>& score = heads.score;
    const ScoreTiles<T> tiles(heads);
    const int warpgroup = cutlass::canonical_warp_group_idx() - 1, thread = threadIdx.x % kWarpgroup;
    const int warp_row = warpgroup * 64 + thread / 32 * 16;  // first query of the warp in a tile
    const auto sync = [&] { cutlass::arch::NamedBarrier::sync(kWarpgroup, warpgroup); };
    const auto dropout = prepared(call.dropout);
    State state;
    tiles.for_each_visible([&](const ScoreTile& tile) {
      const Sequence sequence = call.sequence(tile.b);
      const int64_t first_row = call.row(tile.b, sequence, tile.head, 0);
      const int warp_query = tile.first_query + warp_row;
      float products[kScoreTile / 2];
      shared.ring.template multiply</*kRowsAreKeys=*/false>(state, call.dim, warpgroup, products);
      if (call.has_mask && thread < 64) {
        const int row = warpgroup * 64 + thread;
        shared.mask_rows[row] = call.mask.row(first_row + min(tile.first_query + row, sequence.queries - 1));
      }
      if (thread == 0) wait_for_bulk_reads();
      sync();  // mask rows are complete, and p of the previous tile has been stored

      auto& scores = *reinterpret_cast<Fragments<1, kScoreTile / 8>*>(products);
      const FragmentTerms<T> terms(call, tile.b, sequence, tile.head, warp_query, tile.first_key);
      if (!score.is_product)
        each_score<1, kScoreTile / 8>([&](int, int j, int e, int) {
          scores[0][j][e] = score.of(scores[0][j][e]);
          if (call.has_terms()) scores[0][j][e] += terms(fragment_row(e), j * 8 + fragment_column(e));
        });
      const Range queries{tile.first_query, min(tile.first_query + kScoreTile, sequence.queries)};
      const Range of_all = call.band.keys_of_all(sequence, queries);
      uint32_t visible_rows = 0;
      if (call.can_hide() || tile.first_key < of_all.begin || tile.first_key + kScoreTile > of_all.end)
        mask_scores<ProbabilityTiles>(call, sequence, warp_query, tile.first_key, shared.mask_rows + warp_row, terms,
                                      visible_rows, scores);
      else
        visible_rows = ~0u;
      visible_rows |= __shfl_xor_sync(~0u, visible_rows, 1);
      visible_rows |= __shfl_xor_sync(~0u, visible_rows, 2);
      float* const statistics = tiles.statistics(tile);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float max = max_of_scores(scores, r, kNegInf<float>), base = base_of(max);
        float sum = 0;
#pragma unroll
        for (int j = 0; j < kScoreTile / 8; ++j)
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e) {
            scores[0][j][e] = exp2_or_zero((scores[0][j][e] - base) * score.factor);
            sum += scores[0][j][e];
          }
        sum = sum_of_row(sum);
        if (threadIdx.x % 4 == 0) {
          const int row = warp_row + fragment_row(2 * r);
          statistics[row] = max;
          statistics[kScoreTile + row] = visible_rows >> r & 1 ? sum : -1;
        }
      }
      if (call.dropout.seed)
        drop(dropout, call.first_probability(first_row + warp_query) + tile.first_key, call.keys, scores);
      uint32_t words[kScoreTile / 4];
      round_to<T>(words, products);
      store_fragment<Tile>(shared.p + warp_row * Tile::kPanel, 0, words);
      cutlass::arch::fence_view_async_shared();
      sync();  // p is complete
      if (thread == 0) {
        store_score_rows(tiles.elements(tiles.chunks.p, tile), shared.p, warpgroup);
        commit_bulk();
      }
    });
    if (thread == 0) wait_for_bulk();
  }
};

// The work of a block of the second kernel.
struct ValueWork {
  // Long sums come first: with causality those of the last queries.
  template <class T>
  __device__ bool find(const LargeHeads<T>& heads) {
    const ScoreTiles<T> tiles(heads);
    const int parts = ScoreChunks::parts(heads.call.dim_v), of_row = parts * tiles.chunk.units;
    const int in_row = static_cast<int>(blockIdx.x) % of_row;
    unit = in_row / parts;
    row = tiles.chunk.rows.end - 1 - static_cast<int>(blockIdx.x) / of_row;
    columns = ScoreChunks::columns(heads.call.dim_v);
    column = in_row % parts * columns;
    sequence = tiles.sequence(unit);
    keys = tiles.visible_keys(sequence, row);
    return true;
  }

  int unit, row;
  int column, columns;  // the first one, and the width of the tile
  Sequence sequence;
  Range keys;  // tiles
};

// The second kernel: a block has kColumns columns of a tile of y.
template <class T, int kColumns>
struct ValueProducts {
  using PositionRing = sm90::PositionRing<T, kColumns>;
  using Right = typename PositionRing::Right;
  using State = typename PositionRing::State;
  using Left = SwizzledTile<kScoreTile, kDepth>;

  struct alignas(1024) Shared {
    PositionRing ring;
  };

  using Work = ValueWork;

  static __forceinline__ __device__ void produce(const LargeHeads<T>& heads, Shared& shared, const Work& work) {
    if (threadIdx.x != 0) return;
    const ScoreTiles<T> tiles(heads);
    State state;
#pragma unroll 1
    for (int key_tile = work.keys.begin; key_tile < work.keys.end; ++key_tile) {
      const ScoreTile tile = tiles.at(work.unit, work.row, key_tile);
#pragma unroll 1
      for (int i = 0; i < kScoreTile / kDepth; ++i)
        shared.ring.load(state, tiles.elements(tiles.chunks.p, tile), i, /*is_transposed=*/false, heads.v, work.column,
                         tile.first_key, tile.key_head, tile.b);
    }
  }

  static __forceinline__ __device__ void consume(const LargeHeads<T>& heads, Shared& shared, const Work& work) {
    const Attention& call = heads.call;
    const Scores<T>& score = heads.score;
    const ScoreTiles<T> tiles(heads);
    const int thread = threadIdx.x - kWarpgroup, lane = threadIdx.x % 32, warp_row = thread / 32 * 16;
    const auto right = Right::columns(shared.ring.right);
    const int rows[2] = {warp_row + fragment_row(0), warp_row + fragment_row(2)};
    const auto statistics = [&](int key_tile) { return tiles.statistics(tiles.at(work.unit, work.row, key_tile)); };

    // Maxima of whole rows. Each lane of a quad reads a quarter of the tiles.
    float max[2] = {kNegInf<float>, kNegInf<float>};
#pragma unroll 4
    for (int key_tile = work.keys.begin + lane % 4; key_tile < work.keys.end; key_tile += 4)
#pragma unroll
      for (int r = 0; r < 2; ++r) max[r] = fmaxf(max[r], statistics(key_tile)[rows[r]]);
#pragma unroll
    for (int r = 0; r < 2; ++r) max[r] = max_of_row(max[r]);

    float y[kColumns / 2] = {}, sum[2] = {};  // the sum is relative to the maximum, y to the maximum times 2^rest
    float rest[2] = {};
    constexpr float kLeast = -256;  // exponent, with a power of 0: the rest of minus infinity would be NaN
    bool has_visible[2] = {};
    float next_max[2], next_sum[2];  // of the next tile
    const auto load_statistics = [&](int key_tile) {
      if (key_tile >= work.keys.end) return;
      const float* const of_tile = statistics(key_tile);
#pragma unroll
      for (int r = 0; r < 2; ++r) next_max[r] = of_tile[rows[r]], next_sum[r] = of_tile[kScoreTile + rows[r]];
    };
    load_statistics(work.keys.begin);
    State state;
    uint32_t p[kScoreTile / kDepth][kDepth / 4];
#pragma unroll 1
    for (int key_tile = work.keys.begin; key_tile < work.keys.end; ++key_tile) {
      uint32_t factors[2];
      float rescales[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool is_zero = next_max[r] == kNegInf<float>;
        float exponent = is_zero ? rest[r] : (next_max[r] - max[r]) * score.factor;
        if (exponent < kLeast) exponent = kLeast;
        const float whole = ceilf(exponent);
        const float factor = is_zero ? 0 : power_of_two(whole);
        if (next_sum[r] != -1) has_visible[r] = true, sum[r] += next_sum[r] * exp2_(exponent);
        factors[r] = rounded_pair<T>(factor, factor);
        rescales[r] = exp2_(rest[r] - (exponent - whole));
        rest[r] = exponent - whole;
      }
      load_statistics(key_tile + 1);
#pragma unroll
      for (int i = 0; i < kScoreTile / kDepth; ++i, ++state) {
        const int stage = state.stage;
        shared.ring.ring.wait(state);
        if (call.lengths.data)
          shared.ring.clear_invalid(stage, work.sequence.valid_keys - key_tile * kScoreTile - i * kDepth);
#pragma unroll
        for (int k = 0; k < kDepth; k += kInstructionK) {
          uint32_t* const four = p[i] + k / 4;
          load_matrices<false>(four[0], four[1], four[2], four[3],
                               shared.ring.left[stage] + Left::at(warp_row + lane % 16, k + lane / 16 * 8));
#pragma unroll
          for (int word = 0; word < 4; ++word) four[word] = multiply_pairs<T>(four[word], factors[word % 2]);
        }
        const int previous = stage == 0 ? PositionRing::kStages - 1 : stage - 1;
        if (i == 0 && key_tile > work.keys.begin) {
          wait_for<0>(y);
          shared.ring.ring.release(previous);
#pragma unroll
          for (int value = 0; value < kColumns / 2; ++value) y[value] *= rescales[value / 2 % 2];
        }
        multiply<T, /*kAdds=*/true>(p[i], right + stage * Right::kOffset, y);
        if (i > 0) {
          cute::warpgroup_wait<1>();  // the previous stage has been read
          shared.ring.ring.release(previous);
        }
      }
    }
    wait_for<0>(y);
    cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 0);  // all stages have been read

    const ScoreTile tile = tiles.at(work.unit, work.row, 0);
    const int count = work.sequence.queries - tile.first_query;
    const float sink = call.sinks.data ? call.sinks.get<T>(tile.head) : 0;
    float factors[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float scaled_max = score.scaled(max[r]), all = sum[r];
      const float of_keys = call.sinks.data ? add_sink(sink, scaled_max, all) : 1;
      factors[r] = has_visible[r] ? exp2_(rest[r]) * of_keys * static_cast<float>(call.dropout.scale) / all : 0;
      if (work.column == 0 && lane % 4 == 0 && rows[r] < count)
        *call.lse.row<float>(tile.b, tile.first_query + rows[r], tile.head) = scaled_max + logf(all);
    }
    T* const y_rows = call.y.row<T>(tile.b, tile.first_query, tile.head) + work.column;
    store_rows<typename PositionRing::Result>(warp_row, 0, factors, y, shared.ring.right[0], count,
                                              call.dim_v - work.column,
                                              [&](int row) { return y_rows + row * call.y.position; });
  }
};

template <class T>
Status large_heads_forward(const Attention& call, void* workspace, const Context& context) {
  LargeHeads<T> heads{
      .call = call, .score = Scores<T>(call), .chunks = ScoreChunks(call, /*is_backward=*/false, workspace)};
  return launch_large_heads<ProbabilityTiles, ValueProducts>(
      heads, context, [&](int units, int rows) { return int64_t(rows) * units * ScoreChunks::parts(call.dim_v); });
}

}  // namespace fusedops::cuda::sm90
