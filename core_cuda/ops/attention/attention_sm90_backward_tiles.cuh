// Tile shapes, shared memory, parameters and work tiles of attention's backward on compute capability 9.x. See
// attention_sm90_backward.cuh.
#pragma once

#include "ops/attention/attention_sm90_masked.cuh"

namespace fusedops::cuda::sm90 {

// kMasked: with a mask, dropout or both, and ALiBi if it is given.
template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kMasked, Terms kTerms>
struct Backward {
  using T = Value;
  static constexpr int kM = kTileQueries, kN = kTileKeys, kD = kFeatures;
  static constexpr int kConsumers = 2, kThreads = kWarpgroup * (1 + kConsumers);
  static constexpr int kKeyGroups = kN / 64, kHalves = kConsumers / kKeyGroups;  // consumers along keys, along features
  static constexpr int kStages = kD > 192 ? 1 : 2;                               // per ring
  // True if the product for dk overlaps with the next tile. It needs a second stage of q, and registers for ds beside
  // the next scores.
  static constexpr bool kOverlapsDk = kStages > 1 && kM == 64;
  static constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
  static constexpr bool kHasLateHeads = !kMasked;  // the tiles of a mask are found from the first one on

  // k and v: [keys, features]; q and dy: [queries, features]; ds: [keys, queries].
  using KeyTile = RowTile<kN, kD>;
  using QueryTile = RowTile<kM, kD>;
  using DsTile = RowTile<kN, kM>;

  // With 64 keys the warpgroups divide the features of dk and dv. They divide the queries of dq, or its features if a
  // tile has 64 queries.
  static constexpr int kKeyFeatures = kD / kHalves;
  static constexpr int kQueryGroups = kM / 64, kFeatureGroups = kConsumers / kQueryGroups;
  static constexpr int kQueryFeatures = kD / kFeatureGroups;
  static constexpr int kDqValues = kM * kD / (kConsumers * kWarpgroup);  // per thread
  // Beside 128 features of dk and dv, registers suffice for dq of 64 features: with more, wgmma would be serialized.
  static constexpr int kDqParts = kD > 192 ? 2 : 1, kDqPart = kDqValues / kDqParts;

  // Tiles of a bias, [queries, keys].
  static constexpr bool kHasBias = has_bias(kTerms), kHasBiasTiles = kTerms == Terms::bias_tiles;
  static constexpr int kBiasStages = 2;
  using BiasTile = SwizzledTile<kM, kN>;
  using BiasRing = Ring<kBiasStages>;
  using BiasState = RingState<kBiasStages>;

  using QueryRing = Ring<kStages>;
  using State = RingState<kStages>;
  static constexpr uint32_t kStageBytes = QueryTile::kSize * sizeof(T) + kM * sizeof(float);

  // Warps that add to dq, in turns. With 128 or 192 features, the latency of a semaphore and a reduction exceeds the
  // time of a tile. With 64 or 256 features a second warp is not faster, and beside a bias it is slower.
  static constexpr int kAccumulators = !kMasked && (kD == 128 || kD == 192) ? 2 : 1;
  // Shared memory has room for two buffers with 128 features.
  static constexpr int kDqBuffers = kD == 128 ? kAccumulators : 1;

  // The producer writes an entry before its stage is free, up to kStages + 1 tiles ahead of the consumers. The warp
  // that adds to dq may still have to read the entry of the tile before theirs.
  static constexpr int kLoadedTiles = kMasked ? 4 * kStages : 1;
  static_assert(!kMasked || kLoadedTiles > kStages + 2);

  struct alignas(1024) Shared {
    alignas(1024) T k[KeyTile::kSize];
    alignas(1024) T v[KeyTile::kSize];
    alignas(1024) T q[kStages][QueryTile::kSize];
    alignas(1024) T dy[kStages][QueryTile::kSize];
    alignas(1024) T ds[kStages][DsTile::kSize];
    alignas(128) float dq[kDqBuffers][kM * kD];  // in thread order: value / 4, thread, value % 4
    alignas(128) float lse[kStages][kM];
    alignas(128) float delta[kStages][kM];
    QueryRing q_ring, dy_ring;
    // Loaded tiles of queries: x is 2 * tile, plus 1 if the mask hides nothing of it; y is the expected dq semaphore.
    int2 loaded[kLoadedTiles];
    MaskRows mask;
    cutlass::arch::ClusterTransactionBarrier keys_full;
    cutlass::arch::ClusterBarrier dq_full[kAccumulators], dq_empty[kDqBuffers];
    std::conditional_t<kHasBiasTiles, BiasRing, NoBias> bias_ring;
    std::conditional_t<kHasBiasTiles, BiasTiles<T, BiasTile, kBiasStages>, NoBias> bias;
  };

  // Buffers between the three kernels, indexed by slots.
  struct Workspace {
    static Workspace of(const Attention& call, void* memory) {
      const BackwardSlots sizes(call);
      auto* dq = static_cast<float*>(memory);
      float* dk_dv = dq + sizes.count * kM * kD;
      float* lse = dk_dv + sizes.shared_count * 2 * kN * kD;
      float* delta = lse + sizes.count * kM;
      int* semaphores = reinterpret_cast<int*>(delta + sizes.count * kM);
      return {dq, dk_dv, lse, delta, semaphores, semaphores + sizes.count, sizes.count, sizes.shared_count};
    }

    float* dq;     // sums without the scale
    float* dk_dv;  // the same, for heads that share keys
    float* lse;    // in units of log 2; infinity behind the last query and where lse is -inf without a visible key, so
                   // that probabilities are zero
    float* delta;
    int* dq_semaphores;     // the number of tiles of keys that have added to a tile of dq
    int* dk_dv_semaphores;  // the number of heads that have added to a tile of dk and dv
    int64_t slots, key_slots;
  };

  struct Parameters {
    Attention call;
    CUtensorMap q, dy, k, v;
    TileScheduler<kN> scheduler, late_scheduler;
    int first_late_head;
    Slots<kM> slots;
    Slots<kN> key_slots;
    Workspace workspace;
    MaskTiles mask;  // empty without a mask
    float factor;
    std::conditional_t<kHasBiasTiles, BiasLoads, NoBias> bias;
  };

  using Tiles = std::conditional_t<kMasked, HeadTiles, AllHeadTiles>;

  struct Work {
    Sequence sequence;
    Range keys;     // positions
    Range queries;  // tiles of kM that see some of the keys
    int b, head, key_head;
    bool is_late;
    Tiles tiles;
  };

  static __device__ Work work(const Parameters& parameters, int index) {
    const Attention& call = parameters.call;
    const int late_index = index - parameters.scheduler.work_tiles();
    const bool is_late = kHasLateHeads && late_index >= 0;
    WorkTile work_tile =
        is_late ? parameters.late_scheduler.work_tile(late_index) : parameters.scheduler.work_tile(index);
    if constexpr (kHasBiasTiles)
      if (parameters.bias.is_batch_inner) work_tile = {work_tile.head, work_tile.sequence, work_tile.tile};
    if (is_late) work_tile.head += parameters.first_late_head;
    Work work{.sequence = call.sequence(work_tile.sequence),
              .b = work_tile.sequence,
              .head = work_tile.head,
              .key_head = call.key_head(work_tile.head),
              .is_late = is_late,
              .tiles = Tiles(parameters.mask, call, work_tile.sequence, work_tile.head)};
    const int begin = work_tile.tile * kN, end = begin + kN;
    work.keys = {begin, end < work.sequence.keys ? end : work.sequence.keys};
    const Range valid = {begin, end < work.sequence.valid_keys ? end : work.sequence.valid_keys};
    if (valid.is_empty()) return work;
    const Range queries = call.band.queries(work.sequence, valid);
    if (!queries.is_empty()) work.queries = {queries.begin / kM, (queries.end + kM - 1) / kM};
    return work;
  }

  // Makes the work tile warp-uniform for the compiler, which then keeps derived values in uniform registers.
  static __device__ Work uniform(Work work) {
    for (int* value : {&work.sequence.queries, &work.sequence.keys, &work.sequence.valid_keys, &work.sequence.shift,
                       &work.keys.begin, &work.keys.end, &work.queries.begin, &work.queries.end, &work.b, &work.head,
                       &work.key_head})
      *value = __shfl_sync(0xffffffff, *value, 0);
    if constexpr (kHasLateHeads) work.is_late = __shfl_sync(0xffffffff, work.is_late, 0);
    return work;
  }

  static __device__ Range queries_of(const Work& work, int tile) {
    const int begin = tile * kM, end = begin + kM;
    return {begin, end < work.sequence.queries ? end : work.sequence.queries};
  }

  // Most masks are causal, and for others the direction makes no difference.
  static __host__ __device__ bool is_reversed(const Attention& call) { return call.band.causal || call.has_mask; }

  // The number of heads whose blocks come last, from the longest to the shortest: only an eighth, since these blocks
  // wait for sums of dq more often. It depends on the heads alone, so that sequences have the same bits in any batch.
  static int late_heads(const Attention& call) {
    return kHasLateHeads && call.band.causal && !call.band.window ? (call.heads + 4) / 8 : 0;
  }

  static __forceinline__ __device__ auto query_tiles(const Work& work) {
    return work.tiles.queries(work.keys.begin / kN, work.queries);
  }

  // The number of tiles of keys that add to a tile of dq before this block does.
  static __forceinline__ __device__ int semaphore_value_at(const Parameters& parameters, const Work& work, int tile) {
    const Range keys = parameters.call.band.keys(work.sequence, queries_of(work, tile));
    const int here = work.keys.begin / kN;
    const bool is_from_last = is_reversed(parameters.call) && !work.is_late;
    const Range earlier = is_from_last ? Range{here + 1, (keys.end - 1) / kN + 1} : Range{keys.begin / kN, here};
    return work.tiles.keys(tile, earlier).count();
  }

  // Calls body(query tile, its slot, tiles) in order, for late heads from the last tile on.
  template <class Body>
  static __forceinline__ __device__ void for_each_query_tile(const Parameters& parameters, const Work& work,
                                                             Body&& body) {
    const int64_t first = work.head * parameters.slots.count() + parameters.slots.slot(work.b, 0);
    auto tiles = query_tiles(work);
    for (int i = tiles.after(work.queries.begin - 1); i < work.queries.end; i = tiles.after(i)) {
      const int tile = work.is_late ? work.queries.begin + work.queries.end - 1 - i : i;
      body(tile, first + tile, tiles);
    }
  }

  // attention_sm90_backward_loader.cuh
  static __forceinline__ __device__ void produce(const Parameters& parameters, const Work& work, Shared& shared);
  static __forceinline__ __device__ void produce_bias(const Parameters& parameters, const Work& work, Shared& shared);

  // attention_sm90_backward_accumulate.cuh
  static __forceinline__ __device__ void accumulate(const Parameters& parameters, const Work& work, Shared& shared,
                                                    int accumulator);
  template <int kValues>
  static __forceinline__ __device__ bool reduce_heads(const Parameters& parameters, const Work& work, Shared& shared,
                                                      int thread, float (&dk)[kValues], float (&dv)[kValues]);

  // Bits of the (query, key) pairs of a warp: visible by the mask, and kept by dropout.
  struct PairBits {
    // Loads the bits of a tile while its scores are computed. Queries behind the last one have no mask or draw.
    __forceinline__ __device__ void load_bits(const Attention& call, const Work& work, const MaskRows& mask, int tile,
                                              bool is_tile_visible) {
      const int warp = (threadIdx.x - kWarpgroup) / 32 % (4 * kKeyGroups), key = work.keys.begin + warp * 16;
      const auto query = [&](int in_tile) {
        const int query = tile * kM + in_tile, last = work.sequence.queries - 1;
        return query < last ? query : last;
      };
      are_all_visible = is_tile_visible;
      if (!are_all_visible) {
        visible = {};
        visible.template find<2>(
            [&](int in_tile) { return mask.template visible<16>(query(in_tile), key, work.sequence.valid_keys); });
      }
      if (call.dropout.seed) {
        const auto dropout = call.dropout.template prepared<float>();
        const int64_t row = call.row(work.b, work.sequence, work.head, 0);
        drawn = {};
        drawn.template find<1>(
            [&](int in_tile) { return kept_bits<16>(dropout, call.first_probability(row + query(in_tile)) + key); });
      }
    }

    bool are_all_visible;
    ColumnBits<kM> visible, drawn;  // `visible` is unset if are_all_visible
  };

  // attention_sm90_backward_consumer.cuh
  static __forceinline__ __device__ void consume(const Parameters& parameters, const Work& work, Shared& shared);
  static __forceinline__ __device__ void add_alibi(const Parameters& parameters, const Work& work,
                                                   const Fragment& fragment, int first_key, int tile,
                                                   float (&products)[kM / 2]);
  static __forceinline__ __device__ void add_bias(const Parameters& parameters, const Work& work,
                                                  const HeadBias<T>& head_bias, const Fragment& fragment, int first_key,
                                                  int tile, float (&products)[kM / 2]);
  static __forceinline__ __device__ void add_bias_tile(const Parameters& parameters, Shared& shared, BiasState& state,
                                                       float (&products)[kM / 2]);
  static __forceinline__ __device__ void mask(const Attention& call, const Work& work, const Fragment& fragment,
                                              int first_key, int tile, float (&p)[kM / 2]);

  // attention_sm90_backward_preprocess.cuh
  static constexpr int kLanes = 8;  // lanes per row in prepare()
  static __device__ void prepare(const Parameters& parameters);
  static __device__ void finish(const Parameters& parameters);

  // attention_sm90_backward.cuh
  static __forceinline__ __device__ void run(const Parameters& parameters, Shared& shared);
};

}  // namespace fusedops::cuda::sm90
