// Attention's forward for 16 bits on compute capability 9.x. Limit: the tensor cores and, overlapped with them, the
// units for exponentials.
//
// A producer warp copies tiles of k and v into rings in shared memory through TMA and runs ahead into the next work
// tile. Each consumer warpgroup has 64 queries. It issues the scores of the next tile of keys and the product of the
// previous tile's probabilities with its values, and computes exponentials while they run. The warpgroups alternate
// (ping-pong scheduling), so that one computes exponentials while another's products run. In some kernels work tiles
// overlap, too: see kOverlaps.
//
// With a mask the producer skips tiles without a visible key and passes the index of each loaded tile.
//
// Source: Shah et al., "FlashAttention-3: Fast and accurate attention with asynchrony and low-precision", 2024.
#pragma once

#include "ops/attention/attention_sm90_masked.cuh"

namespace fusedops::cuda::sm90 {

// kMasked: with a mask, dropout or both, and ALiBi if it is given.
template <class Value, int kTileQueries, int kTileKeys, int kFeatures, int kRing, bool kMasked, Terms kTerms>
struct Forward {
  using T = Value;
  static constexpr int kM = kTileQueries, kN = kTileKeys, kD = kFeatures, kStages = kRing;
  static constexpr int kConsumers = kM / 64, kThreads = kWarpgroup * (1 + kConsumers);
  static constexpr bool kHasBias = has_bias(kTerms), kHasBiasTiles = kTerms == Terms::bias_tiles;
  static constexpr int kConsumerRegisters = kHasBiasTiles ? 232 : kConsumers == 2 ? 240 : 160;
  static constexpr int kProducerRegisters = kHasBiasTiles ? 40 : kConsumers == 2 ? 24 : 32;

  using QTile = RowTile<kM, kD>;
  using KeyTile = RowTile<kN, kD>;  // of k and of v
  static constexpr uint32_t kKeyBytes = KeyTile::kSize * sizeof(T);

  using KeyRing = Ring<kStages>;
  using State = RingState<kStages>;

  // Twice the stages: the producer writes an entry before the stage is free, when the previous one may still be read. A
  // product ends only when all warps of a warpgroup have started it, and so have read all earlier entries.
  static constexpr int kLoadedTiles = kMasked ? 2 * kStages : 1;

  // Tiles of a bias, which each consumer has for itself.
  static constexpr int kBiasStages = 1;
  using BiasTile = SwizzledTile<64, kHasBiasTiles ? kN : 64>;
  using BiasRing = Ring<kBiasStages>;
  using BiasState = RingState<kBiasStages>;
  static constexpr uint32_t kBiasBytes = kHasBiasTiles ? kConsumers * kBiasStages * BiasTile::kSize * sizeof(T) : 0;

  // True if shared memory has room for y, or another q.
  static constexpr bool kHasRoom = (2 * kM + 2 * kStages * kN) * kD * sizeof(T) + kBiasBytes <= (226 << 10);
  // True if the first scores of a work tile are computed beside the last product of the previous one. Only with few
  // features or ALiBi: elsewhere the loop over all work tiles takes up to 1.05 of the time.
  static constexpr bool kOverlaps = kHasRoom && !kMasked && kConsumers == 2 && (kD == 64 || kTerms == Terms::alibi);
  static constexpr bool kHasYBuffer = kHasRoom && !kOverlaps;  // otherwise y takes the memory of q
  static constexpr int kQStages = kOverlaps ? 2 : 1;
  using QState = RingState<kQStages>;

  struct Work {
    Sequence sequence;
    Range queries, keys;  // positions; tiles of kN, from the first visible one to the last
    int b, head;          // b is -1 behind the last work tile
  };

  // True if the producer finds the work tiles and passes them to the consumers: beside their products, and packed
  // sequences in the order in which blocks become free. Consumers whose work tiles overlap look ahead, and would wait
  // for a producer that waits for them.
  static constexpr bool kPassesWork = !kMasked && !kOverlaps && kTerms == Terms::none;
  static constexpr int kWorkStages = 2;
  using WorkState = RingState<kWorkStages>;
  struct PassedWork {
    Ring<kWorkStages> ring;
    Work at[kWorkStages];
  };
  struct NoPassedWork {};

  struct alignas(1024) Shared {
    alignas(1024) T q[kQStages][QTile::kSize];
    alignas(1024) T y[kHasYBuffer ? QTile::kSize : 1];
    alignas(1024) T k[kStages][KeyTile::kSize];
    alignas(1024) T v[kStages][KeyTile::kSize];
    KeyRing k_ring, v_ring;
    int loaded[kLoadedTiles];  // 2 * tile of keys, plus 1 if the mask hides nothing of it
    Ring<kQStages> q_ring;
    std::conditional_t<kPassesWork, PassedWork, NoPassedWork> work;
    std::conditional_t<kHasBiasTiles, BiasRing[kConsumers], NoBias> bias_ring;
    std::conditional_t<kHasBiasTiles, BiasTiles<T, BiasTile, kConsumers * kBiasStages>, NoBias> bias;
  };

  struct Parameters {
    Attention call;
    CUtensorMap q, k, v;
    TileScheduler<kM> scheduler;
    MaskTiles mask;  // empty without a mask
    float factor;
    bool has_bias_pairs;  // see HeadBias::of_keys
    int* taken;           // counts the work tiles that blocks have taken, or null: the order is that of WorkTiles
    std::conditional_t<kHasBiasTiles, BiasLoads, NoBias> bias;
  };

  // The tiles of keys in a range.
  static __forceinline__ __device__ auto tiles_of(const Parameters& parameters, const Work& work, Range range) {
    using Tiles = std::conditional_t<kMasked, HeadTiles, AllHeadTiles>;
    return Tiles(parameters.mask, parameters.call, work.b, work.head).keys(work.queries.begin / kM, range);
  }

  // Has no queries if the work tile lies beyond the end of its sequence.
  static __forceinline__ __device__ Work work(const Parameters& parameters, int index) {
    const Attention& call = parameters.call;
    WorkTile work_tile = parameters.scheduler.work_tile(index);
    if constexpr (kHasBiasTiles)
      if (parameters.bias.is_batch_inner) work_tile = {work_tile.head, work_tile.sequence, work_tile.tile};
    Work work{.sequence = call.sequence(work_tile.sequence), .b = work_tile.sequence, .head = work_tile.head};
    const int begin = work_tile.tile * kM, end = begin + kM;
    work.queries = {begin, end < work.sequence.queries ? end : work.sequence.queries};
    if (work.queries.is_empty()) return work;
    const Range keys = call.band.keys(work.sequence, work.queries);
    if (!keys.is_empty()) work.keys = tiles_of(parameters, work, {keys.begin / kN, (keys.end + kN - 1) / kN}).visible();
    return work;
  }

  // The work tiles of this block. The direction of rounds over the blocks alternates, to balance the load.
  struct WorkTiles {
    __forceinline__ __device__ bool has_more(const Parameters& parameters) const {
      return first + place < parameters.scheduler.work_tiles();
    }
    __forceinline__ __device__ Work current(const Parameters& parameters) const {
      return work(parameters, first + place);
    }
    __forceinline__ __device__ void advance() { first += blocks, place = blocks - 1 - place; }

    // Returns false behind the last one.
    __forceinline__ __device__ bool next(const Parameters& parameters, Work* next) {
      if (!has_more(parameters)) return false;
      *next = current(parameters);
      advance();
      return true;
    }

    int blocks = gridDim.x, first = 0, place = blockIdx.x;
  };

  // Calls body(work) for the work tiles of this block.
  template <class Body>
  static __forceinline__ __device__ void for_each_work_tile(const Parameters& parameters, Body&& body) {
    for (WorkTiles tiles; tiles.has_more(parameters); tiles.advance()) body(tiles.current(parameters));
  }

  // Called by the producer warp: passes the work tiles of this block to the consumers and calls body(work, take) for
  // those with keys. body calls take() when the next work tile may be taken: late, for a balanced end, but a tile of
  // keys before its loads, since an atomic addition takes about a microsecond.
  template <class Body>
  static __forceinline__ __device__ void pass_work_tiles(const Parameters& parameters, Shared& shared, Body&& body) {
    const bool is_leader = threadIdx.x % 32 == 0;
    PassedWork& passed = shared.work;
    const auto pass = [&](WorkState& state, const Work& work) {
      passed.ring.empty[state.stage].wait(state.phase ^ 1);
      if (is_leader) {
        passed.at[state.stage] = work;
        passed.ring.full[state.stage].arrive();
      }
      ++state;
    };
    WorkState state;
    WorkTiles tiles;
    int taken = 0;  // before this block; only the leader knows, and nobody waits for the number before it is needed
    const auto take = [&] {
      tiles.advance();
      if (parameters.taken && is_leader) taken = atomicAdd(parameters.taken, 1);
    };
    for (int index = tiles.place; index < parameters.scheduler.work_tiles();) {
      const Work work = Forward::work(parameters, index);
      if (!work.queries.is_empty()) pass(state, work);
      if (work.queries.is_empty() || work.keys.is_empty())
        take();
      else
        body(work, take);
      index = parameters.taken ? tiles.blocks + __shfl_sync(~0u, taken, 0) : tiles.first + tiles.place;
    }
    pass(state, {.b = -1});
  }

  // Calls body(work) for the work tiles that the producer passes to this consumer.
  template <class Body>
  static __forceinline__ __device__ void for_each_passed_work_tile(Shared& shared, Body&& body) {
    PassedWork& passed = shared.work;
    for (WorkState state;; ++state) {
      passed.ring.wait(state);
      const Work work = passed.at[state.stage];
      __syncwarp();
      if (threadIdx.x % 32 == 0) passed.ring.empty[state.stage].arrive();
      if (work.b < 0) return;
      body(work);
    }
  }

  // The producer warp: loads tiles of k from the last on, and each tile of v after the next tile of k.
  static __forceinline__ __device__ void produce(const Parameters& parameters, Shared& shared) {
    const Attention& call = parameters.call;
    const bool is_leader = threadIdx.x % 32 == 0;
    State k_state, v_state;
    QState q_state;
    const auto load = [&](const Work& work, auto&& before_last) {
      const int key_head = call.key_head(work.head), sequence = call.offsets_q ? 0 : work.b;
      const int first_key = static_cast<int>(work.sequence.first_key);
      auto tiles = tiles_of(parameters, work, work.keys);
      const auto load_k = [&](int tile) {
        if constexpr (kMasked)
          if (is_leader) shared.loaded[k_state.count % kLoadedTiles] = 2 * tile + tiles.is_all_visible(tile);
        uint64_t* const barrier = shared.k_ring.acquire(k_state, is_leader, kKeyBytes);
        if (is_leader)
          load_tile<KeyTile>(parameters.k, barrier, first_key + tile * kN, key_head, sequence, shared.k[k_state.stage]);
        ++k_state;
      };
      const auto load_v = [&](int tile) {
        uint64_t* const barrier = shared.v_ring.acquire(v_state, is_leader, kKeyBytes);
        if (is_leader)
          load_tile<KeyTile>(parameters.v, barrier, first_key + tile * kN, key_head, sequence, shared.v[v_state.stage]);
        ++v_state;
      };
      int tile = tiles.before(work.keys.end);
      load_k(tile);
      uint64_t* const barrier = shared.q_ring.acquire(q_state, is_leader, sizeof(shared.q[0]));
      if (is_leader)
        load_tile<QTile>(parameters.q, barrier, static_cast<int>(work.sequence.first_query) + work.queries.begin,
                         work.head, sequence, shared.q[q_state.stage]);
      ++q_state;
      for (int next; (next = tiles.before(tile)) >= work.keys.begin; tile = next) {
        load_k(next);
        load_v(tile);
      }
      before_last();
      load_v(tile);
    };
    if constexpr (kPassesWork)
      pass_work_tiles(parameters, shared, load);
    else
      for_each_work_tile(parameters, [&](const Work& work) {
        if (!work.keys.is_empty()) load(work, [] {});
      });
  }

  // The warp that loads tiles of the bias, for one consumer after the other.
  static __forceinline__ __device__ void produce_bias(const Parameters& parameters, Shared& shared) {
    BiasState state;
    for_each_work_tile(parameters, [&](const Work& work) {
      if (work.keys.is_empty()) return;
      const int64_t place = parameters.call.bias_place(work.b, work.head);
      const int width = parameters.bias.width;
      auto tiles = tiles_of(parameters, work, work.keys);
      for (int tile = tiles.before(work.keys.end); tile >= work.keys.begin; tile = tiles.before(tile))
        for (int part = 0; part < width; ++part) {
#pragma unroll 1
          for (int consumer = 0; consumer < kConsumers; ++consumer)
            load_bias<BiasTile, 64, kN>(parameters.bias, place, shared.bias_ring[consumer], state,
                                        work.queries.begin + consumer * 64, (tile * width + part) * kN,
                                        shared.bias.at[consumer * kBiasStages + state.stage]);
          ++state;
        }
    });
  }

  // Online softmax of two rows per thread.
  struct Softmax {
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};

    // Replaces scores by exponentials relative to the new maximum. The caller multiplies y by `rescale`. max * factor
    // is rounded once for all terms of a row. `bias` is added to this thread's scores of a row if the kernel has
    // biases. With a bias of each score, which has none of them, a maximum may be so large that the rounding of max *
    // factor exceeds the range of exponents: the maximum is subtracted first.
    template <int kValues>
    __forceinline__ __device__ void step(float (&scores)[kValues], const float (&bias)[2], float factor,
                                         float (&rescale)[2]) {
      constexpr bool kSubtractsFirst = kHasBias;
      constexpr bool kBiased = (kTerms != Terms::none || kMasked) && !kSubtractsFirst;
      float before[2] = {max[0], max[1]};
      if constexpr (kBiased) max[0] = max[1] = -INFINITY;
#pragma unroll
      for (int v = 0; v < kValues; ++v) max[v / 2 % 2] = fmaxf(max[v / 2 % 2], scores[v]);
      float offset[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if constexpr (kBiased) max[r] += bias[r];
        max[r] = over_row(max[r], [](float a, float b) { return fmaxf(a, b); });
        if constexpr (kBiased) max[r] = fmaxf(before[r], max[r]);
        offset[r] = max[r] == -INFINITY ? 0 : kSubtractsFirst ? max[r] : max[r] * factor;  // 0: no visible key yet
        rescale[r] = exp2_or_zero(kSubtractsFirst ? (before[r] - offset[r]) * factor : before[r] * factor - offset[r]);
        sum[r] *= rescale[r];
        if constexpr (kBiased) offset[r] = fmaf(-bias[r], factor, offset[r]);
      }
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        const float base = offset[v / 2 % 2];
        scores[v] = exp2_or_zero(kSubtractsFirst ? (scores[v] - base) * factor : fmaf(scores[v], factor, -base));
        sum[v / 2 % 2] += scores[v];
      }
    }
  };

  // Visibility of the (query, key) pairs of a thread; empty without a mask or dropout.
  struct NoPairBits {
    __device__ NoPairBits(const Attention&, const Work&, const Fragment&, int) {}
    __device__ void load_bits(const Attention&, const Work&, int, bool) {}
    __device__ bool has_visible(int) const { return true; }
  };

  struct MaskedPairBits {
    __device__ MaskedPairBits(const Attention& call, const Work& work, const Fragment& fragment, int warpgroup)
        : mask(call, work.b, work.sequence, work.head),
          first_query(work.queries.begin + warpgroup * 64 + fragment.first_row) {}

    // Loads the bits of a tile while its scores are computed. Not needed if all pairs are visible.
    __forceinline__ __device__ void load_bits(const Attention& call, const Work& work, int tile, bool is_tile_visible) {
      are_all_visible = is_tile_visible && fully_visible_tiles(call, work).has(tile);
      if (are_all_visible) {
        if constexpr (!kHasBias) any[0] = any[1] = ~0u;
        return;
      }
      const int column = threadIdx.x % 4 * 32, key = tile * kN + column;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Range keys = call.band.keys(work.sequence, query(r));
        uint32_t bits = column < kN ? bits_of({keys.begin - key, keys.end - key}) : 0;
        if (call.has_mask && bits)
          bits &= mask.template visible<32>(min(query(r), work.sequence.queries - 1), key, work.sequence.valid_keys);
        visible.own[r] = bits;
        if constexpr (!kHasBias) any[r] |= bits;
      }
    }

    __forceinline__ __device__ RowBits<kN> draw(const Attention& call, const Work& work, int tile) const {
      const auto dropout = call.dropout.template prepared<float>();
      RowBits<kN> drawn;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t first = call.first_probability(call.row(work.b, work.sequence, work.head, query(r)));
        drawn.own[r] = kept_bits<32>(dropout, first + tile * kN + threadIdx.x % 4 * 32);
      }
      return drawn;
    }

    // True if a key of the row is visible.
    __device__ bool has_visible(int r) const {
      uint32_t bits = any[r] | __shfl_xor_sync(0xffffffff, any[r], 1);
      return bits | __shfl_xor_sync(0xffffffff, bits, 2);
    }

    __device__ int query(int r) const { return first_query + 8 * r; }

    MaskRows mask;
    int first_query;
    bool are_all_visible;
    RowBits<kN> visible;   // unset if are_all_visible
    uint32_t any[2] = {};  // not zero if some key of a row is visible; add_bias() finds it if there is a bias
  };

  using PairBits = std::conditional_t<kMasked, MaskedPairBits, NoPairBits>;

  // A consumer warpgroup.
  static __forceinline__ __device__ void consume(const Parameters& parameters, Shared& shared) {
    const int thread = threadIdx.x - kWarpgroup, warpgroup = cutlass::canonical_warp_group_idx() - 1;
    if (kConsumers > 1 && warpgroup == kConsumers - 1) signal_next_warpgroup(warpgroup);
    if constexpr (kOverlaps) return attend_overlapping(parameters, shared, thread);
    State k_state, v_state;
    QState q_state;
    BiasState bias_state;
    const auto process = [&](const Work& work) {
      if (work.keys.is_empty())
        store_zeros(parameters, work, thread);
      else
        attend(parameters, work, shared, thread, k_state, v_state, q_state, bias_state);
    };
    if constexpr (kPassesWork)
      for_each_passed_work_tile(shared, process);
    else
      for_each_work_tile(parameters, [&](const Work& work) {
        if (!work.queries.is_empty()) process(work);
      });
  }

  static __forceinline__ __device__ void attend(const Parameters& parameters, const Work& work, Shared& shared,
                                                int thread, State& k_state, State& v_state, QState& q_state,
                                                BiasState& bias_state) {
    const Attention& call = parameters.call;
    const int warpgroup = cutlass::canonical_warp_group_idx() - 1;
    const Fragment fragment(thread % kWarpgroup);
    const auto q = QTile::rows(shared.q, warpgroup * 64);
    const auto k = KeyTile::rows(shared.k);
    const auto v = KeyTile::columns(shared.v);
    float scores[kN / 2], y[kD / 2] = {};
    uint32_t p[kN / 4];
    Softmax softmax;
    float rescale[2];
    PairBits pairs(call, work, fragment, warpgroup);
    HeadBias<T> head_bias;
    if constexpr (kTerms == Terms::bias) head_bias = {call, parameters.factor, work.b, work.head};

    const auto start_scores = [&] {
      shared.k_ring.wait(k_state);
      multiply<T, /*kAdds=*/false>(q, k + k_state.stage * KeyTile::kOffset, scores);
    };
    // Loads the bits of the tile whose scores were issued last, and returns the tile.
    const auto load_bits = [&](int expected) {
      const int loaded = kMasked ? shared.loaded[k_state.count % kLoadedTiles] : 2 * expected;
      pairs.load_bits(call, work, loaded / 2, loaded % 2);
      if constexpr (kTerms == Terms::bias)
        head_bias.template prefetch<kN>(call, work.sequence, work.queries.begin + warpgroup * 64,
                                        (loaded / 2 - 1) * kN);
      return loaded / 2;
    };
    const auto start_values = [&] {
      shared.v_ring.wait(v_state);
      multiply<T, /*kAdds=*/true>(p, v + v_state.stage * KeyTile::kOffset, y);
    };
    const auto release = [](KeyRing& ring, State& state) {
      ring.release(state.stage);
      ++state;
    };
    const auto apply_softmax = [&](int tile, auto is_masked) {
      float bias[2] = {};
      if (kTerms == Terms::alibi || (kMasked && call.alibi.data)) {
        const float slope = alibi_slope<T>(call, parameters.factor, work.head);
        add_alibi(parameters, work, fragment, warpgroup, tile, slope, scores, bias);
        if constexpr (kHasBias)
#pragma unroll
          for (int i = 0; i < kN / 2; ++i) scores[i] += bias[i / 2 % 2];
      }
      if constexpr (kTerms == Terms::bias) add_bias(parameters, work, head_bias, tile, pairs, scores);
      if constexpr (kHasBiasTiles) add_bias_tile(parameters, shared, bias_state, pairs, scores);
      if constexpr (kMasked) {
        if (!pairs.are_all_visible)
          pairs.visible.each([&](int i, bool visible) { scores[i] = visible ? scores[i] : -INFINITY; });
        softmax.step(scores, bias, parameters.factor, rescale);
        if (call.dropout.seed)
          pairs.draw(call, work, tile).each([&](int i, bool kept) { scores[i] = kept ? scores[i] : 0; });
      } else {
        if constexpr (is_masked) mask(parameters, work, fragment, warpgroup, tile, scores);
        softmax.step(scores, bias, parameters.factor, rescale);
      }
    };
    const auto finish_scores = [&](int tile) {
      release(shared.k_ring, k_state);
      if (kHasYBuffer && tile == work.keys.begin) shared.q_ring.release(0);
    };
    bool adds = false;  // true if a product with v is in flight
    const auto finish_values = [&] {
      wait_for<0>(y);
      if (adds) release(shared.v_ring, v_state);
      // Skips the rescaling of y, since maxima seldom grow after the first tiles.
      if (__any_sync(0xffffffff, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
        for (int i = 0; i < kD / 2; ++i) y[i] *= rescale[i / 2 % 2];
      }
      round_to<T>(p, scores);
    };
    int tile = work.keys.end - 1;
    // The wait is at the beginning of the loop body: after the exponentials, the compiler would move it before them,
    // and they would not overlap with the products.
    const auto process_tiles_down_to = [&](int last, auto is_masked) {
      while (tile > last) {
        finish_values();
        wait_for_turn(warpgroup);
        start_scores();
        start_values();
        adds = true;
        signal_next_warpgroup(warpgroup);
        tile = load_bits(tile - 1);
        wait_for<1>(scores);
        finish_scores(tile);
        apply_softmax(tile, is_masked);
      }
    };

    shared.q_ring.wait(q_state);
    ++q_state;
    start_scores();
    load_bits(tile);
    wait_for<0>(scores);
    finish_scores(tile);
    const Range whole = kMasked ? Range{work.keys.begin, work.keys.begin} : fully_visible_tiles(call, work);
    if (whole.begin <= tile && tile < whole.end)
      apply_softmax(tile, std::false_type{});
    else
      apply_softmax(tile, std::true_type{});
    clear_invalid_values(parameters, work, tile, shared, v_state, thread);
    if constexpr (!kMasked) {
      process_tiles_down_to(whole.end, std::true_type{});
      process_tiles_down_to(whole.begin, std::false_type{});  // a separate loop without the mask
    }
    process_tiles_down_to(work.keys.begin, std::true_type{});
    finish_values();
    start_values();
    wait_for<0>(y);
    release(shared.v_ring, v_state);
    if constexpr (!kHasYBuffer) sync(warpgroup);
    store(parameters, work, fragment, thread, softmax, pairs, y, kHasYBuffer ? shared.y : shared.q[0]);
    if constexpr (!kHasYBuffer) {
      cutlass::arch::fence_view_async_shared();
      sync(warpgroup);
      shared.q_ring.release(0);
    }
  }

  // A consumer warpgroup whose work tiles overlap. A single loop runs over the tiles of keys of all work tiles: with a
  // loop for each work tile, ptxas would serialize the products (C7512). It finds the next work tile beside products.
  static __forceinline__ __device__ void attend_overlapping(const Parameters& parameters, Shared& shared, int thread) {
    const Attention& call = parameters.call;
    const int warpgroup = cutlass::canonical_warp_group_idx() - 1;
    const Fragment fragment(thread % kWarpgroup);
    const auto q = QTile::rows(shared.q, warpgroup * 64);
    const auto k = KeyTile::rows(shared.k);
    const auto v = KeyTile::columns(shared.v);
    float scores[kN / 2], y[kD / 2] = {};
    uint32_t p[kN / 4];
    Softmax softmax;
    float rescale[2];
    State k_state, v_state;
    QState q_state;
    struct Attended {
      Work work;
      Range visible;  // tiles of keys that all queries see
      float slope;    // of ALiBi
    } current, following;
    const Work& work = current.work;
    WorkTiles work_tiles;
    const auto find_following = [&] {
      while (work_tiles.next(parameters, &following.work)) {
        if (following.work.queries.is_empty()) continue;
        if (!following.work.keys.is_empty()) {
          following.visible = fully_visible_tiles(call, following.work);
          if constexpr (kTerms == Terms::alibi)
            following.slope = alibi_slope<T>(call, parameters.factor, following.work.head);
          return true;
        }
        store_zeros(parameters, following.work, thread);
      }
      return false;
    };
    if (!find_following()) return;
    current = following;
    bool has_following = find_following();
    int tile = work.keys.end - 1;

    const auto start_scores = [&] {
      shared.k_ring.wait(k_state);
      multiply<T, /*kAdds=*/false>(q + q_state.stage * QTile::kOffset, k + k_state.stage * KeyTile::kOffset, scores);
    };
    const auto start_values = [&] {
      shared.v_ring.wait(v_state);
      multiply<T, /*kAdds=*/true>(p, v + v_state.stage * KeyTile::kOffset, y);
    };
    const auto release = [](KeyRing& ring, State& state) {
      ring.release(state.stage);
      ++state;
    };
    const auto is_masked = [&] { return !current.visible.has(tile); };
    const auto apply_softmax = [&](bool is_masked) {
      float bias[2] = {};
      if constexpr (kTerms == Terms::alibi)
        add_alibi(parameters, work, fragment, warpgroup, tile, current.slope, scores, bias);
      if (is_masked) mask(parameters, work, fragment, warpgroup, tile, scores);
      softmax.step(scores, bias, parameters.factor, rescale);
    };

    shared.q_ring.wait(q_state);
    start_scores();
    wait_for<0>(scores);
    release(shared.k_ring, k_state);
    apply_softmax(is_masked());
    clear_invalid_values(parameters, work, tile, shared, v_state, thread);
    Rows rows;
    bool adds = false;      // true if a product with v is in flight
    bool has_rows = false;  // true if it is the last one of `rows`
    int q_stage = 0;        // of `rows`
    while (true) {
      wait_for<0>(y);
      if (adds) release(shared.v_ring, v_state);
      if (has_rows) {
        store_and_release(parameters, rows, thread, y, shared, q_stage);
#pragma unroll
        for (int i = 0; i < kD / 2; ++i) y[i] = 0;
        clear_invalid_values(parameters, work, tile, shared, v_state, thread);
      } else if (__any_sync(0xffffffff, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
        for (int i = 0; i < kD / 2; ++i) y[i] *= rescale[i / 2 % 2];
      }
      round_to<T>(p, scores);
      has_rows = tile == work.keys.begin;
      if (has_rows) {
        finish_rows(parameters, work, fragment, thread, softmax, PairBits(call, work, fragment, warpgroup),
                    rows.factors);
        rows.first = call.y.row<T>(call.batch_index(work.b), work.sequence.first_query + work.queries.begin, work.head);
        rows.count = work.queries.end - work.queries.begin;
        softmax = {};
        q_stage = q_state.stage;
        if (!has_following) break;
        current = following;
        tile = work.keys.end;
        ++q_state;
        shared.q_ring.wait(q_state);
      }
      wait_for_turn(warpgroup);
      start_scores();
      start_values();
      adds = true;
      signal_next_warpgroup(warpgroup);
      --tile;
      if (has_rows) has_following = find_following();
      const bool needs_mask = is_masked();
      wait_for<1>(scores);
      release(shared.k_ring, k_state);
      apply_softmax(needs_mask);
    }
    start_values();
    wait_for<0>(y);
    store_and_release(parameters, rows, thread, y, shared, q_stage);
  }

  static __device__ void sync(int warpgroup) { cutlass::arch::NamedBarrier::sync(kWarpgroup, kConsumers + warpgroup); }

  // Tiles of keys that are visible to every query of the work tile.
  static __forceinline__ __device__ Range fully_visible_tiles(const Attention& call, const Work& work) {
    const Range keys = call.band.keys_of_all(work.sequence, work.queries);
    const auto within = [&](int tile) { return tile < work.keys.begin ? work.keys.begin : tile; };
    return {within((keys.begin + kN - 1) / kN), within(keys.end / kN)};
  }

  // Replaces masked scores by -inf.
  static __forceinline__ __device__ void mask(const Parameters& parameters, const Work& work, const Fragment& fragment,
                                              int warpgroup, int tile, float (&scores)[kN / 2]) {
    const Attention& call = parameters.call;
    const int first_key = tile * kN;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = work.queries.begin + warpgroup * 64 + fragment.row(r);
      Range keys = call.band.keys(work.sequence, query);
      keys = {keys.begin - first_key, keys.end - first_key};
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) {
        if (i / 2 % 2 != r) continue;
        if (!keys.has(fragment.column(i))) scores[i] = -INFINITY;
      }
    }
  }

  // Adds the bias of ALiBi to products, in units of products. On one side of the diagonal it is linear: a multiply-add
  // for each score, and a term for each row, `bias`, which the softmax adds. Otherwise a score takes two operations.
  // The side is that of the 64 queries of a warpgroup, so that all sizes of tiles give the same bits.
  static __forceinline__ __device__ void add_alibi(const Parameters& parameters, const Work& work,
                                                   const Fragment& fragment, int warpgroup, int tile, float slope,
                                                   float (&scores)[kN / 2], float (&bias)[2]) {
    const int diagonal = work.queries.begin + warpgroup * 64 + work.sequence.shift - tile * kN;
    float distance[2];  // of the first column from the diagonal
#pragma unroll
    for (int r = 0; r < 2; ++r) distance[r] = static_cast<float>(diagonal + fragment.row(r) - fragment.pair);
    const bool is_left = parameters.call.band.causal || diagonal >= kN - 1, is_right = diagonal + 63 <= 0;
    if (is_left || is_right) {
      const float by_row = is_left ? slope : -slope;
#pragma unroll
      for (int r = 0; r < 2; ++r) bias[r] = by_row * distance[r];
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) scores[i] = fmaf(-by_row, static_cast<float>(i / 4 * 8 + i % 2), scores[i]);
      return;
    }
#pragma unroll
    for (int i = 0; i < kN / 2; ++i)
      scores[i] = fmaf(slope, fabsf(distance[i / 2 % 2] - (i / 4 * 8 + i % 2)), scores[i]);
  }

  // Adds the bias to products, in units of products.
  static __forceinline__ __device__ void add_bias(const Parameters& parameters, const Work& work,
                                                  const HeadBias<T>& head_bias, int tile, PairBits& pairs,
                                                  float (&scores)[kN / 2]) {
    const int first_key = tile * kN + threadIdx.x % 4 * 2;
    int queries[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) queries[r] = min(pairs.query(r), work.sequence.queries - 1);
    float2 of_keys;
    const auto add = [&](int i, bool is_visible) {
      const int r = i / 2 % 2;
      if (i % 2 == 0)
        of_keys = head_bias.of_keys(parameters.call, queries[r], first_key + i / 4 * 8, parameters.has_bias_pairs);
      const float bias = i % 2 ? of_keys.y : of_keys.x;
      scores[i] = head_bias.add(scores[i], bias);
      pairs.any[r] |= is_visible && bias != -INFINITY;
    };
    if (pairs.are_all_visible) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) add(i, true);
    } else {
      pairs.visible.each(add);
    }
  }

  // Adds the next tile of the bias to products, 32 keys at a time.
  static __forceinline__ __device__ void add_bias_tile(const Parameters& parameters, Shared& shared, BiasState& state,
                                                       PairBits& pairs, float (&scores)[kN / 2]) {
    const BiasUnit bias_unit(parameters.factor);
    const int warpgroup = cutlass::canonical_warp_group_idx() - 1, lane = threadIdx.x % 32;
    const int row = threadIdx.x % kWarpgroup / 32 * 16;
    const bool is_f32 = parameters.bias.width == 2;
    BiasRing& ring = shared.bias_ring[warpgroup];
#pragma unroll
    for (int part = 0; part < kN / 32; ++part) {
      const bool is_second = is_f32 && part >= kN / 64;
      if (part == 0 || (is_f32 && part == kN / 64)) ring.wait(state);
      float numbers[16];
      load_bias_rows<BiasTile>(parameters.bias, shared.bias.at[warpgroup * kBiasStages + state.stage], row,
                               (part - (is_second ? kN / 64 : 0)) * 32 * (is_f32 ? 2 : 1), numbers);
      if (part == kN / 32 - 1 || (is_f32 && part == kN / 64 - 1)) {
        __syncwarp();
        if (lane == 0) ring.empty[state.stage].arrive();
        ++state;
      }
      const bool needs_care = bias_unit.add(numbers, reinterpret_cast<float (&)[16]>(scores[part * 16]));
      uint32_t visible[2];
#pragma unroll
      for (int r = 0; r < 2; ++r)
        visible[r] = pairs.are_all_visible ? ~0u : __shfl_sync(0xffffffff, pairs.visible.own[r], part, 4);
      if (needs_care) {
        uint32_t finite[2] = {};
#pragma unroll
        for (int i = 0; i < 16; ++i)
          finite[i / 2 % 2] |= uint32_t(numbers[i] != -INFINITY) << (i / 4 * 8 + lane % 4 * 2 + i % 2);
#pragma unroll
        for (int r = 0; r < 2; ++r) visible[r] &= finite[r];
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) pairs.any[r] |= visible[r];
    }
  }

  // Values behind the last valid key may be NaN.
  static __forceinline__ __device__ void clear_invalid_values(const Parameters& parameters, const Work& work, int tile,
                                                              Shared& shared, const State& v_state, int thread) {
    const int valid = work.sequence.valid_keys - tile * kN;
    if (valid >= kN || !(parameters.call.offsets_q || parameters.call.lengths.data)) return;
    shared.v_ring.wait(v_state);
    clear_rows<KeyTile>(shared.v[v_state.stage], valid, thread % kWarpgroup, kWarpgroup);
    sync(thread / kWarpgroup);
  }

  // Ping-pong scheduling: one warpgroup issues its products while the others compute exponentials.
  static __device__ void wait_for_turn(int warpgroup) {
    if constexpr (kConsumers > 1) cutlass::arch::NamedBarrier::sync(2 * kWarpgroup, warpgroup);
  }
  static __device__ void signal_next_warpgroup(int warpgroup) {
    if constexpr (kConsumers > 1) cutlass::arch::NamedBarrier::arrive(2 * kWarpgroup, (warpgroup + 1) % kConsumers);
  }

  // Stores lse and returns the factors of y. A row without a visible key is zeros; one whose visible scores are all
  // -inf is NaN.
  static __forceinline__ __device__ void finish_rows(const Parameters& parameters, const Work& work,
                                                     const Fragment& fragment, int thread, const Softmax& softmax,
                                                     const PairBits& pairs, float (&factors)[2]) {
    const Attention& call = parameters.call;
    const int64_t b = call.batch_index(work.b), first = work.sequence.first_query + work.queries.begin;
    const int count = work.queries.end - work.queries.begin;
    const float sink = call.sinks.data ? call.sinks.template get<T>(work.head) : 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = over_row(softmax.sum[r], [](float a, float b) { return a + b; });
      float max = softmax.max[r] * parameters.factor * static_cast<float>(1 / kLog2E);
      const float of_keys = call.sinks.data ? add_sink(sink, max, sum) : 1;
      const int row = thread / kWarpgroup * 64 + fragment.row(r);
      const bool has_visible =
          kMasked ? pairs.has_visible(r) : !call.band.keys(work.sequence, work.queries.begin + row).is_empty();
      const float lse = max + logf(sum);
      if (row < count && fragment.pair == 0)
        *call.lse.row<float>(b, first + row, work.head) = sum == 0 ? -INFINITY : lse;
      const float scale = kMasked ? static_cast<float>(call.dropout.scale) : 1;
      factors[r] = sum == 0 && !has_visible ? 0 : of_keys * scale / sum;
    }
  }

  // Stores y / sum and lse.
  static __forceinline__ __device__ void store(const Parameters& parameters, const Work& work, const Fragment& fragment,
                                               int thread, const Softmax& softmax, const PairBits& pairs,
                                               float (&y)[kD / 2], T* tile) {
    const Attention& call = parameters.call;
    const int64_t b = call.batch_index(work.b), first = work.sequence.first_query + work.queries.begin;
    const int first_row = thread / 32 * 16, count = work.queries.end - work.queries.begin;
    float factors[2];
    finish_rows(parameters, work, fragment, thread, softmax, pairs, factors);
    T* const y_rows = call.y.row<T>(b, first, work.head);
    store_rows<QTile>(first_row, 0, factors, y, tile, count, call.dim_v,
                      [&](int row) { return y_rows + row * call.y.position; });
  }

  // Rows of y whose sums are complete, and the factors of two of them.
  struct Rows {
    float factors[2];
    T* first;
    int count;
  };

  // Stores rows of y through the memory of a q. The fence comes with a memory barrier, so it precedes the stores to
  // global memory.
  static __forceinline__ __device__ void store_and_release(const Parameters& parameters, const Rows& rows, int thread,
                                                           float (&y)[kD / 2], Shared& shared, int q_stage) {
    const int first_row = thread / 32 * 16;
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) y[i] *= rows.factors[i / 2 % 2];
    uint32_t words[kD / 4];
    round_to<T>(words, y);
    T* const own_rows = shared.q[q_stage] + first_row * QTile::kPanel;
    __syncwarp();
    store_fragment<QTile>(own_rows, 0, words);
    __syncwarp();
    constexpr int kVectors = kD / 8, kPerAccess = 32 / kVectors;  // vectors per row, rows per access of a warp
    const int lane = threadIdx.x % 32, column = lane % kVectors * 8;
    uint4 vectors[16 / kPerAccess];
#pragma unroll
    for (int i = 0; i < 16 / kPerAccess; ++i)
      vectors[i] = *reinterpret_cast<const uint4*>(own_rows + QTile::at(i * kPerAccess + lane / kVectors, column));
    cutlass::arch::fence_view_async_shared();
    const Attention& call = parameters.call;
    const int row = first_row + lane / kVectors, count = column < call.dim_v ? rows.count - row : 0;
    T* to = rows.first + row * call.y.position + column;
#pragma unroll
    for (int i = 0; i < 16 / kPerAccess; ++i, to += kPerAccess * call.y.position)
      if (i * kPerAccess < count) *reinterpret_cast<uint4*>(to) = vectors[i];
    sync(thread / kWarpgroup);
    shared.q_ring.release(q_stage);
  }

  // Stores the result of queries that see no key.
  static __device__ void store_zeros(const Parameters& parameters, const Work& work, int thread) {
    const Attention& call = parameters.call;
    const int vectors = call.dim_v / 8, count = work.queries.end - work.queries.begin;
    const int64_t b = call.batch_index(work.b), first = work.sequence.first_query + work.queries.begin;
    for (int i = thread; i < count * vectors; i += kConsumers * kWarpgroup)
      reinterpret_cast<uint4*>(call.y.row<T>(b, first + i / vectors, work.head))[i % vectors] = {};
    const float lse = call.sinks.data ? call.sinks.template get<T>(work.head) : -INFINITY;
    for (int i = thread; i < count; i += kConsumers * kWarpgroup) *call.lse.row<float>(b, first + i, work.head) = lse;
  }

  static __forceinline__ __device__ void run(const Parameters& parameters, Shared& shared) {
    const bool is_producer = cutlass::canonical_warp_group_idx() == 0;
    if (threadIdx.x == 0) {
      for (const CUtensorMap* map : {&parameters.q, &parameters.k, &parameters.v}) cute::prefetch_tma_descriptor(map);
      shared.k_ring.init(kConsumers);
      shared.v_ring.init(kConsumers);
      if constexpr (kHasBiasTiles)
        for (BiasRing& ring : shared.bias_ring) ring.init(kWarpgroup / 32);
      shared.q_ring.init(kConsumers);
      if constexpr (kPassesWork) shared.work.ring.init(kConsumers * kWarpgroup / 32);
    }
    cutlass::arch::fence_barrier_init();
    __syncthreads();
    begin_kernel();
    if (is_producer) {
      cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      if (threadIdx.x < 32) produce(parameters, shared);
      if constexpr (kHasBiasTiles)
        if (threadIdx.x / 32 == 1) produce_bias(parameters, shared);
    } else {
      cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      consume(parameters, shared);
    }
  }
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1)
    attention_forward(const __grid_constant__ typename Kernel::Parameters parameters) {
  extern __shared__ __align__(1024) char memory[];
  Kernel::run(parameters, *reinterpret_cast<typename Kernel::Shared*>(memory));
}

template <class Kernel>
Status launch_forward(const Attention& call, void* workspace, const Context& context) {
  MaskTiles mask;
  if (call.has_mask) {
    mask = {call, Kernel::kM, Kernel::kN, workspace};
    FUSEDOPS_TRY((find_mask_tiles<Kernel::kM, Kernel::kN>(mask, context)));
  }
  constexpr int kMinPairs = 16;  // several blocks then read the keys of a head at the same time
  // Short sequences would read k and v of larger sections from DRAM twice.
  constexpr int64_t kCached = TileScheduler<Kernel::kM>::kHalfOfL2 / 2;
  typename Kernel::Parameters parameters{.call = call, .mask = mask, .factor = factor_of(call)};
  if (call.offsets_q) parameters.taken = PackedOffsets(call, const_cast<int32_t*>(call.offsets_q)).taken;
  parameters.has_bias_pairs = call.bias.has_aligned_pairs(call.keys, call.bias_row, call.dtype);
  parameters.scheduler = TileScheduler<Kernel::kM>::of(Slots<Kernel::kM>::of_queries(call), call.heads,
                                                       int64_t(call.keys) * (call.dim + call.dim_v) * 2 / call.group,
                                                       kMinPairs, true, true, kCached);
  if constexpr (Kernel::kHasBiasTiles) {
    FUSEDOPS_TRY(BiasLoads::of<64>(call, &parameters.bias));
    if (parameters.bias.is_batch_inner) parameters.scheduler.take_sequences_first();
  }
  FUSEDOPS_TRY(allow_shared_memory(attention_forward<Kernel>, sizeof(typename Kernel::Shared)));
  using QTile = typename Kernel::QTile;
  using KeyTile = typename Kernel::KeyTile;
  const int64_t sequences = call.offsets_q ? 1 : call.sequences;
  FUSEDOPS_TRY((describe_inputs<QTile, KeyTile>(call, sequences, Kernel::kM, Kernel::kN, &parameters)));
  const int blocks = std::min(parameters.scheduler.work_tiles(), device_attribute(cudaDevAttrMultiProcessorCount));
  return launch(context, attention_forward<Kernel>, Grid{blocks, Kernel::kThreads, sizeof(typename Kernel::Shared)},
                parameters);
}

// True if tiles of 128 queries are faster than tiles of 192. The larger ones compute more rows behind the last query
// and more pairs above the diagonal, but each pair in 0.8 of the time. Both give the same bits. The lengths of packed
// sequences and query offsets are unknown here.
inline bool has_small_tiles(const Attention& call) {
  constexpr int kMaxQueries = 2048, kKeys = 128;  // more queries have too few wasted pairs
  if (call.offsets_q || call.band.window || call.queries > kMaxQueries) return false;
  const auto pairs = [&](int rows) {
    int64_t pairs = 0;
    for (int begin = 0; begin < call.queries; begin += rows) {
      const Range queries{begin, std::min(begin + rows, call.queries)};
      const int end = call.band.keys({0, 0, call.queries, call.keys, call.keys, call.keys - call.queries}, queries).end;
      pairs += int64_t(rows) * ((std::max(end, 0) + kKeys - 1) / kKeys * kKeys);
    }
    return pairs;
  };
  return 5 * pairs(128) < 4 * pairs(192);
}

// Selects the tile by the number of features: as many queries as registers allow, and as many keys as leave room for
// the probabilities beside the scores.
template <class T, bool kMasked, Terms kTerms = Terms::none>
Status forward(const Attention& call, void* workspace, const Context& context) {
  const int features = std::max(call.dim, call.dim_v);
  if (features <= 64) {
    if constexpr (!kMasked)
      if (!has_small_tiles(call))
        return launch_forward<Forward<T, 192, 128, 64, 2, kMasked, kTerms>>(call, workspace, context);
    return launch_forward<Forward<T, 128, 128, 64, kMasked ? 2 : 3, kMasked, kTerms>>(call, workspace, context);
  }
  if (features <= 128) return launch_forward<Forward<T, 128, 128, 128, 2, kMasked, kTerms>>(call, workspace, context);
  if constexpr (!kMasked)
    if (features <= 192) return launch_forward<Forward<T, 128, 96, 192, 2, kMasked, kTerms>>(call, workspace, context);
  return launch_forward<Forward<T, 128, 80, 256, 2, kMasked, kTerms>>(call, workspace, context);
}

}  // namespace fusedops::cuda::sm90
