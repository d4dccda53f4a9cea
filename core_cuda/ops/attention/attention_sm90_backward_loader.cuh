// The producer warp of attention's backward on compute capability 9.x.
#pragma once

#include "ops/attention/attention_sm90_backward_tiles.cuh"

namespace fusedops::cuda::sm90 {

template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kMasked, Terms kTerms>
__forceinline__ __device__ void Backward<Value, kTileQueries, kTileKeys, kFeatures, kMasked, kTerms>::produce(
    const Parameters& parameters, const Work& work, Shared& shared) {
  const Attention& call = parameters.call;
  const bool is_leader = threadIdx.x % 32 == 0, packed = call.offsets_q;
  const int b = packed ? 0 : work.b;
  if (is_leader) {
    auto* barrier = reinterpret_cast<uint64_t*>(&shared.keys_full);
    const int position = static_cast<int>(work.sequence.first_key) + work.keys.begin;
    shared.keys_full.arrive_and_expect_tx(sizeof(shared.k) + sizeof(shared.v));
    load_tile<KeyTile>(parameters.k, barrier, position, work.key_head, b, shared.k);
    load_tile<KeyTile>(parameters.v, barrier, position, work.key_head, b, shared.v);
  }
  State state;
  for_each_query_tile(parameters, work, [&](int tile, int64_t slot, const auto& tiles) {
    const int position = static_cast<int>(work.sequence.first_query) + tile * kM, stage = state.stage;
    if constexpr (kMasked) {
      // Computed here, since the producer runs ahead of the consumers.
      const int semaphore_value = semaphore_value_at(parameters, work, tile);
      if (is_leader)
        shared.loaded[state.count % kLoadedTiles] = {2 * tile + tiles.is_all_visible(tile), semaphore_value};
    }
    const auto load = [&](QueryRing& ring, const CUtensorMap& map, T* rows, const float* numbers, float* to) {
      uint64_t* const barrier = ring.acquire(state, is_leader, kStageBytes);
      if (!is_leader) return;
      load_tile<QueryTile>(map, barrier, position, work.head, b, rows);
      cute::SM90_BULK_COPY_G2S::copy(numbers + slot * kM, barrier, to, kM * sizeof(float));
    };
    load(shared.q_ring, parameters.q, shared.q[stage], parameters.workspace.lse, shared.lse[stage]);
    load(shared.dy_ring, parameters.dy, shared.dy[stage], parameters.workspace.delta, shared.delta[stage]);
    ++state;
  });
}

// The warp that loads tiles of the bias.
template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kMasked, Terms kTerms>
__forceinline__ __device__ void Backward<Value, kTileQueries, kTileKeys, kFeatures, kMasked, kTerms>::produce_bias(
    const Parameters& parameters, const Work& work, Shared& shared) {
  const int64_t place = parameters.call.bias_place(work.b, work.head);
  const int width = parameters.bias.width;
  BiasState state;
  for_each_query_tile(parameters, work, [&](int tile, int64_t, const auto&) {
    for (int part = 0; part < width; ++part) {
      load_bias<BiasTile, kM, kN>(parameters.bias, place, shared.bias_ring, state, tile * kM,
                                  work.keys.begin * width + part * kN, shared.bias.at[state.stage]);
      ++state;
    }
  });
}

}  // namespace fusedops::cuda::sm90
