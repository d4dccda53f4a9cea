// The consumer warpgroups of attention's backward on compute capability 9.x.
#pragma once

#include "ops/attention/attention_sm90_backward_tiles.cuh"

namespace fusedops::cuda::sm90 {

// Zeroes masked probabilities, whatever their scores. Most tiles have none. Rows are keys, columns are queries.
template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kMasked, Terms kTerms>
__forceinline__ __device__ void Backward<Value, kTileQueries, kTileKeys, kFeatures, kMasked, kTerms>::mask(
    const Attention& call, const Work& work, const Fragment& fragment, int first_key, int tile, float (&p)[kM / 2]) {
  const Range queries = queries_of(work, tile);
  const Range of_all = call.band.keys_of_all(work.sequence, queries);
  const bool whole = of_all.begin <= work.keys.begin && work.keys.begin + kN <= of_all.end;
  if (whole) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = work.keys.begin + first_key + fragment.row(r), first = queries.begin + fragment.pair;
    Range seen = call.band.queries(work.sequence, {key, key + 1});
    seen = key < work.sequence.valid_keys ? Range{seen.begin - first, seen.end - first} : Range{};
#pragma unroll
    for (int i = 0; i < kM / 2; ++i) {
      if (i / 2 % 2 != r) continue;
      if (!seen.has(i / 4 * 8 + i % 2)) p[i] = 0;
    }
  }
}

// Adds the bias of ALiBi to products, as the forward does.
template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kMasked, Terms kTerms>
__forceinline__ __device__ void Backward<Value, kTileQueries, kTileKeys, kFeatures, kMasked, kTerms>::add_alibi(
    const Parameters& parameters, const Work& work, const Fragment& fragment, int first_key, int tile,
    float (&products)[kM / 2]) {
  const float slope = alibi_slope<T>(parameters.call, parameters.factor, work.head);
  const int key = work.keys.begin + first_key - (tile * kM + work.sequence.shift);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const auto distance = static_cast<float>(key + fragment.row(r) - fragment.pair);  // of the first column
#pragma unroll
    for (int i = 0; i < kM / 2; ++i) {
      if (i / 2 % 2 != r) continue;
      products[i] = fmaf(slope, fabsf(distance - (i / 4 * 8 + i % 2)), products[i]);
    }
  }
}

// Adds the bias to products, in units of products. Rows are keys, columns are queries.
template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kMasked, Terms kTerms>
__forceinline__ __device__ void Backward<Value, kTileQueries, kTileKeys, kFeatures, kMasked, kTerms>::add_bias(
    const Parameters& parameters, const Work& work, const HeadBias<T>& head_bias, const Fragment& fragment,
    int first_key, int tile, float (&products)[kM / 2]) {
  const int key = work.keys.begin + first_key, last_query = work.sequence.queries - 1;
#pragma unroll
  for (int i = 0; i < kM / 2; ++i) {
    const int query = min(tile * kM + fragment.column(i), last_query);
    products[i] = head_bias.add(products[i], head_bias.at(parameters.call, query, key + fragment.row(i / 2 % 2)));
  }
}

// Adds the next tile of the bias to products, 32 queries at a time. Rows are keys, columns are queries. In float32 each
// warpgroup has a tile for its keys.
template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kMasked, Terms kTerms>
__forceinline__ __device__ void Backward<Value, kTileQueries, kTileKeys, kFeatures, kMasked, kTerms>::add_bias_tile(
    const Parameters& parameters, Shared& shared, BiasState& state, float (&products)[kM / 2]) {
  const BiasUnit bias_unit(parameters.factor);
  const bool is_f32 = parameters.bias.width == 2;
  const int warp = threadIdx.x / 32 - kWarpgroup / 32;
  const auto wait = [&] { shared.bias_ring.wait(state); };
  const auto release = [&] {
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared.bias_ring.empty[state.stage].arrive();
    ++state;
  };
  if (is_f32 && warp >= 4) wait(), release();
  wait();
#pragma unroll
  for (int part = 0; part < kM / 32; ++part) {
    float numbers[16];
    load_bias_columns<BiasTile>(parameters.bias, shared.bias.at[state.stage], part * 32,
                                is_f32 ? warp % 4 * 32 : warp * 16, numbers);
    bias_unit.add(numbers, reinterpret_cast<float (&)[16]>(products[part * 16]));
  }
  release();
  if (is_f32 && warp < 4) wait(), release();
}

// A consumer warpgroup: dk and dv of 64 keys.
template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kMasked, Terms kTerms>
__forceinline__ __device__ void Backward<Value, kTileQueries, kTileKeys, kFeatures, kMasked, kTerms>::consume(
    const Parameters& parameters, const Work& work, Shared& shared) {
  const Attention& call = parameters.call;
  const int thread = threadIdx.x - kWarpgroup, warpgroup = cutlass::canonical_warp_group_idx() - 1;
  const int first_key = warpgroup % kKeyGroups * 64;  // first key of this warpgroup in the tile
  const Fragment fragment(thread % kWarpgroup);
  const int key_half = warpgroup / kKeyGroups * kKeyFeatures;
  const auto k = KeyTile::rows(shared.k, first_key), v = KeyTile::rows(shared.v, first_key);
  const auto q = QueryTile::rows(shared.q), dy = QueryTile::rows(shared.dy);
  const auto q_right = QueryTile::columns(shared.q, key_half), dy_right = QueryTile::columns(shared.dy, key_half);
  const auto ds_left = DsTile::columns(shared.ds, warpgroup % kQueryGroups * 64);
  const auto k_right = KeyTile::columns(shared.k, warpgroup / kQueryGroups * kQueryFeatures);
  float dk[kKeyFeatures / 2] = {}, dv[kKeyFeatures / 2] = {};

  if (!work.queries.is_empty()) {
    shared.keys_full.wait(0);
    const int valid = work.sequence.valid_keys - work.keys.begin;
    if (valid < kN && (call.offsets_q || call.lengths.data)) {
      clear_rows<KeyTile>(shared.k, valid, thread, kConsumers * kWarpgroup);
      clear_rows<KeyTile>(shared.v, valid, thread, kConsumers * kWarpgroup);
      cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 0);
    }
  }
  State state;
  BiasState bias_state;
  uint32_t phase = 1;
  PairBits pairs;
  HeadBias<T> head_bias;
  if constexpr (kTerms == Terms::bias) head_bias = {call, parameters.factor, work.b, work.head};
  if (kMasked && call.has_mask) {  // in shared memory to save registers
    if (thread == 0) shared.mask = MaskRows(call, work.b, work.sequence, work.head);
    cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 0);
  }
  const auto process_tile = [&](int tile) {
    const int stage = state.stage, offset = stage * QueryTile::kOffset;
    float scores[kM / 2], slopes[kM / 2];
    shared.q_ring.wait(state);
    bool is_tile_visible = true;
    if constexpr (kMasked) {
      const int loaded = shared.loaded[state.count % kLoadedTiles].x;
      tile = loaded / 2, is_tile_visible = loaded % 2;
    }
    if (call.offsets_q && (tile + 1) * kM > work.sequence.queries) {  // the tile has rows of the next sequence
      const int rows = work.sequence.queries - tile * kM;
      shared.dy_ring.wait(state);
      clear_rows<QueryTile>(shared.q[stage], rows, thread, kConsumers * kWarpgroup);
      clear_rows<QueryTile>(shared.dy[stage], rows, thread, kConsumers * kWarpgroup);
      cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 0);
    }
    multiply<T, /*kAdds=*/false>(k, q + offset, scores);
    shared.dy_ring.wait(state);
    multiply<T, /*kAdds=*/false>(v, dy + offset, slopes);
    if constexpr (kMasked) pairs.load_bits(call, work, shared.mask, tile, is_tile_visible);
    if constexpr (kTerms == Terms::bias)
#pragma unroll
      for (int query = 0; query < kM; query += 64)
        head_bias.template prefetch<64>(call, work.sequence, (tile + 1) * kM + query, work.keys.begin + first_key);
    wait_for<1>(dk, scores);
    if (kOverlapsDk && state.count > 0) shared.q_ring.release((stage + 1) % kStages);  // of the previous tile

    if (kTerms == Terms::alibi || (kMasked && call.alibi.data))
      add_alibi(parameters, work, fragment, first_key, tile, scores);
    if constexpr (kTerms == Terms::bias) add_bias(parameters, work, head_bias, fragment, first_key, tile, scores);
    if constexpr (kHasBiasTiles) add_bias_tile(parameters, shared, bias_state, scores);
    // p = 2^(score - lse).
    uint32_t p[kM / 4], ds[kM / 4];
    const float factor = parameters.factor;
#pragma unroll
    for (int i = 0; i < kM / 2; ++i) {
      const bool is_hidden = kHasBias && scores[i] == -INFINITY;  // lse may be -inf as well
      float exponent = fmaf(scores[i], factor, -shared.lse[stage][fragment.column(i)]);
      if constexpr (kHasBias) exponent = at_most_zero(exponent);
      scores[i] = is_hidden ? 0 : exp2_or_zero(exponent);
    }
    mask(call, work, fragment, first_key, tile, scores);
    if constexpr (kMasked)
      if (!pairs.are_all_visible) pairs.visible.each([&](int i, bool visible) { scores[i] = visible ? scores[i] : 0; });
    round_to<T>(p, scores);
    if constexpr (kMasked)
      if (call.dropout.seed)
        pairs.drawn.each([&](int i, bool kept) { p[i / 2] &= kept ? ~0u : i % 2 ? 0x0000ffffu : 0xffff0000u; });
    multiply<T, /*kAdds=*/true>(p, dy_right + offset, dv);
    wait_for<1>(slopes);
    if constexpr (kMasked)
      if (call.dropout.seed) {
        const auto scale = static_cast<float>(call.dropout.scale);
        pairs.drawn.each([&](int i, bool kept) { slopes[i] = kept ? slopes[i] * scale : 0; });
      }
#pragma unroll
    for (int i = 0; i < kM / 2; ++i) {
      slopes[i] = scores[i] * (slopes[i] - shared.delta[stage][fragment.column(i)]);
    }
    round_to<T>(ds, slopes);

    // All consumers have read the previous ds of this stage.
    if (warpgroup < kKeyGroups)
      store_fragment<DsTile>(shared.ds[stage] + (first_key + thread % kWarpgroup / 32 * 16) * DsTile::kPanel, 0, ds);
    cutlass::arch::fence_view_async_shared();
    cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 0);
    float dq[kDqPart];
    const int buffer = state.count % kDqBuffers;
    const auto store_dq = [&](int part) {
#pragma unroll
      for (int i = 0; i < kDqPart; i += 4)
        *reinterpret_cast<float4*>(shared.dq[buffer] + (part * kDqPart + i) * kConsumers * kWarpgroup + thread * 4) =
            make_float4(dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
    };
    multiply<T, /*kAdds=*/false>(ds_left + stage * DsTile::kOffset, k_right, dq);
    multiply<T, /*kAdds=*/true>(ds, q_right + offset, dk);
    cute::warpgroup_wait<2>();
    shared.dy_ring.release(stage);
    wait_for<1>(dq);
    shared.dq_empty[buffer].wait(phase);
    if (buffer == kDqBuffers - 1) phase ^= 1;
    store_dq(0);
    if constexpr (kDqParts == 2) {
      constexpr int kNext = KeyTile::offset_of_columns(kQueryFeatures / kDqParts);
      multiply<T, /*kAdds=*/false>(ds_left + stage * DsTile::kOffset, k_right + kNext, dq);
      wait_for<0>(dq, dk);
      store_dq(1);
    }
    cutlass::arch::fence_view_async_shared();
    __syncwarp();
    if (thread % 32 == 0) shared.dq_full[state.count % kAccumulators].arrive();
    if constexpr (!kOverlapsDk) {
      wait_for<0>(dk);
      shared.q_ring.release(stage);
      if constexpr (kStages == 1) cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 1);  // ds has been read
    }
    ++state;
  };
  if constexpr (kMasked)
    for (int left = query_tiles(work).count(); left > 0; --left) process_tile(0);  // the producer passes the tile
  else
    for_each_query_tile(parameters, work, [&](int tile, int64_t, const auto&) { process_tile(tile); });
  wait_for<0>(dk);
  if (!reduce_heads(parameters, work, shared, thread, dk, dv)) return;

  // Results pass through the memory of v and k, which is free now.
  const int64_t b = call.batch_index(work.b), first = work.sequence.first_key + work.keys.begin;
  const int first_row = first_key + thread % kWarpgroup / 32 * 16, count = work.keys.end - work.keys.begin;
  const auto store = [&](auto& values, double factor, T* tile, const HeadRows& rows, int columns) {
    const float factors[2] = {static_cast<float>(factor), static_cast<float>(factor)};
    T* const first_place = rows.row<T>(b, first, work.key_head);
    store_rows<KeyTile>(first_row, key_half, factors, values, tile, count, columns,
                        [&](int row) { return first_place + row * rows.position; });
  };
  cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 0);
  store(dv, kMasked ? call.dropout.scale : 1, shared.v, call.dv, call.dim_v);
  store(dk, call.scale, shared.k, call.dk, call.dim);
}

}  // namespace fusedops::cuda::sm90
