// Attention's backward for 16 bits on compute capability 9.x. Limit: the tensor cores.
//
// A block owns a tile of keys and walks over the queries of one head that see them. One warp copies tiles of q and dy
// into rings in shared memory. Two warpgroups have the dk and dv of 64 keys each in registers; scores and their
// gradients are computed transposed, [keys, queries], so that both stay in registers as the left operands of these
// sums. The gradient of the scores also goes to shared memory, for dq, a sum over keys. The sum for dk runs on while dq
// is stored and the next tile's scores are started, so that the tensor cores do not fall idle between two tiles.
//
// With more than 128 features there is room in registers for the sums of 64 keys, of which each warpgroup has half of
// the features. Both compute the same scores: 7 products of a tile in place of 5, but nothing has to be exchanged.
//
// dq is summed up over blocks, in float32 in global memory, and always in the order of the keys: a counter for each
// tile of queries says whose turn it is. A warp of its own waits for the turn and has the bulk copy engine add the
// tile. A block waits only for blocks that come before it in the grid, so that it cannot wait for one that never
// starts. Where attention is causal, the keys are taken from the last on: each block begins with the queries beside
// its keys, so that when it comes to those of the next block, that one is done with them.
//
// Heads that share keys have a block each: otherwise few key heads would leave multiprocessors idle. Their dk and dv
// are summed up likewise, in float32 and in the order of the heads; the last one adds its own and rounds.
//
// With a mask the warp that copies leaves out the tiles of which it keeps nothing, and says which ones it brings.
//
// Three kernels: the first prepares delta and the logarithms of the sums, the last rounds dq.
//
// Source: Shah et al., "FlashAttention-3: Fast and accurate attention with asynchrony and low-precision", 2024.
#pragma once

#include "ops/attention/attention_sm90_bits.cuh"

namespace fusedops::cuda::sm90 {

// kBits: with a mask or dropout, or both.
template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kBits>
struct Backward {
  using T = Value;
  static constexpr int kM = kTileQueries, kN = kTileKeys, kD = kFeatures;
  static constexpr int kConsumers = 2, kThreads = kWarpgroup * (1 + kConsumers);
  static constexpr int kKeyGroups = kN / 64, kHalves = kConsumers / kKeyGroups;  // warpgroups: over keys, over features
  static constexpr int kStages = kD > 192 ? 1 : 2;                               // of each ring
  // dk runs on into the next tile: if its q has a place of its own, and two scores of each pair leave registers for ds.
  static constexpr bool kRunsOn = kStages > 1 && kM == 64;
  static constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;

  // k and v: [keys, features]; q and dy: [queries, features]; ds: [keys, queries].
  using KeyTile = RowTile<kN, kD>;
  using QueryTile = RowTile<kM, kD>;
  using DsTile = RowTile<kN, kM>;

  // dk and dv: the warpgroups share the features where there are 64 keys. dq: they share its queries, or its features
  // where there are 64 queries.
  static constexpr int kKeyFeatures = kD / kHalves;
  static constexpr int kQueryGroups = kM / 64, kFeatureGroups = kConsumers / kQueryGroups;
  static constexpr int kQueryFeatures = kD / kFeatureGroups;
  static constexpr int kDqValues = kM * kD / (kConsumers * kWarpgroup);  // in a thread
  // Beside 128 features of dk and dv, there are registers for dq of 64 features: with more, wgmma would be serialized.
  static constexpr int kDqParts = kD > 192 ? 2 : 1, kDqPart = kDqValues / kDqParts;

  using QueryRing = Ring<kStages>;
  using State = RingState<kStages>;
  static constexpr uint32_t kStageBytes = QueryTile::kSize * sizeof(T) + kM * sizeof(float);

  // A stage's copy is told before the stage is free, while the copy before it may still be read.
  static constexpr int kTold = kBits ? 2 * kStages : 1;

  struct alignas(1024) Shared {
    alignas(1024) T k[KeyTile::kSize];
    alignas(1024) T v[KeyTile::kSize];
    alignas(1024) T q[kStages][QueryTile::kSize];
    alignas(1024) T dy[kStages][QueryTile::kSize];
    alignas(1024) T ds[kStages][DsTile::kSize];
    alignas(128) float dq[kM * kD];  // as the threads have it: value / 4, thread, value % 4
    alignas(128) float lse[kStages][kM];
    alignas(128) float delta[kStages][kM];
    QueryRing q_ring, dy_ring;
    // Of a tile of queries: its number, times two, and whether the mask keeps all of it; whose turn its dq is.
    int2 told[kTold];
    MaskRows mask;
    cutlass::arch::ClusterTransactionBarrier keys_are_there;
    cutlass::arch::ClusterBarrier dq_is_there, dq_is_free;
  };

  // What the kernels hand on, slot by slot.
  struct Workspace {
    static Workspace of(const Attention& call, void* memory) {
      const BackwardSlots sizes(call);
      auto* dq = static_cast<float*>(memory);
      float* dk_dv = dq + sizes.count * kM * kD;
      float* lse = dk_dv + sizes.shared_count * 2 * kN * kD;
      float* delta = lse + sizes.count * kM;
      int* turns = reinterpret_cast<int*>(delta + sizes.count * kM);
      return {dq, dk_dv, lse, delta, turns, turns + sizes.count, sizes.count, sizes.shared_count};
    }

    float* dq;     // sums, not yet times the scale
    float* dk_dv;  // likewise, of heads that share keys
    float* lse;    // in units of log 2; infinity for rows that see no key, so that their probabilities are zero
    float* delta;
    int* turns;      // how many tiles of keys have added their part to a tile of dq
    int* key_turns;  // how many heads have added their part to a tile of dk and dv
    int64_t slots, key_slots;
  };

  struct Parameters {
    Attention call;
    CUtensorMap q, dy, k, v;
    Order<kN> order;
    Slots<kM> slots;
    Slots<kN> key_slots;
    Workspace workspace;
    MaskTiles mask;  // nothing without a mask
    float factor;
  };

  using Tiles = std::conditional_t<kBits, HeadTiles, EveryHeadTile>;

  struct Work {
    Sequence sequence;
    Range keys;     // of the tile
    Range queries;  // as tiles of kM, that see some of them
    int b, head, key_head;
    Tiles tiles;
  };

  static __device__ Work work(const Parameters& parameters, int index) {
    const Attention& call = parameters.call;
    const Task task = parameters.order.task(index);
    Work work{.sequence = call.sequence(task.sequence),
              .b = task.sequence,
              .head = task.head,
              .key_head = call.key_head(task.head),
              .tiles = Tiles(parameters.mask, call, task.sequence, task.head)};
    const int begin = task.tile * kN, end = begin + kN;
    work.keys = {begin, end < work.sequence.keys ? end : work.sequence.keys};
    const Range kept = {begin, end < work.sequence.kept ? end : work.sequence.kept};
    if (kept.is_empty()) return work;
    const Range queries = call.band.queries(work.sequence, kept);
    if (!queries.is_empty()) work.queries = {queries.begin / kM, (queries.end + kM - 1) / kM};
    return work;
  }

  // The same, known to the compiler to be so for all threads of a warp: it then keeps it, and what follows from it, out
  // of the registers that the sums need.
  static __device__ Work uniform(Work work) {
    for (int* value : {&work.sequence.queries, &work.sequence.keys, &work.sequence.kept, &work.keys.begin,
                       &work.keys.end, &work.queries.begin, &work.queries.end, &work.b, &work.head, &work.key_head})
      *value = __shfl_sync(0xffffffff, *value, 0);
    return work;
  }

  static __device__ Range queries_of(const Work& work, int tile) {
    const int begin = tile * kM, end = begin + kM;
    return {begin, end < work.sequence.queries ? end : work.sequence.queries};
  }

  // Most masks of pairs are causal, and for the others it makes no difference.
  static __host__ __device__ bool last_first(const Attention& call) { return call.band.causal || call.has_mask; }

  // The tiles of queries that see the block's keys.
  static __forceinline__ __device__ auto query_tiles(const Work& work) {
    return work.tiles.queries(work.keys.begin / kN, work.queries);
  }

  // How many tiles of keys add to the dq of a tile of queries before this block.
  static __forceinline__ __device__ int turn_of(const Parameters& parameters, const Work& work, int tile) {
    const Range keys = parameters.call.band.keys(work.sequence, queries_of(work, tile));
    const int here = work.keys.begin / kN;
    const Range earlier =
        last_first(parameters.call) ? Range{here + 1, (keys.end - 1) / kN + 1} : Range{keys.begin / kN, here};
    return work.tiles.keys(tile, earlier).count();
  }

  // Calls body(tile of queries, its slot, tiles), in the order in which all warps take them.
  template <class Body>
  static __forceinline__ __device__ void for_each_query_tile(const Parameters& parameters, const Work& work,
                                                             Body&& body) {
    const int64_t first = work.head * parameters.slots.count() + parameters.slots.slot(work.b, 0);
    auto tiles = query_tiles(work);
    for (int tile = tiles.after(work.queries.begin - 1); tile < work.queries.end; tile = tiles.after(tile))
      body(tile, first + tile, tiles);
  }

  // The warp that copies.
  static __forceinline__ __device__ void produce(const Parameters& parameters, const Work& work, Shared& shared) {
    const Attention& call = parameters.call;
    const bool leads = threadIdx.x % 32 == 0, packed = call.offsets_q;
    const int b = packed ? 0 : work.b;
    if (leads) {
      auto* barrier = reinterpret_cast<uint64_t*>(&shared.keys_are_there);
      const int position = static_cast<int>(work.sequence.first_key) + work.keys.begin;
      shared.keys_are_there.arrive_and_expect_tx(sizeof(shared.k) + sizeof(shared.v));
      load_tile<KeyTile>(parameters.k, barrier, position, work.key_head, b, shared.k);
      load_tile<KeyTile>(parameters.v, barrier, position, work.key_head, b, shared.v);
    }
    State state;
    for_each_query_tile(parameters, work, [&](int tile, int64_t slot, const auto& tiles) {
      const int position = static_cast<int>(work.sequence.first_query) + tile * kM, stage = state.stage;
      if constexpr (kBits) {
        // Here, where it delays nobody: this warp runs ahead.
        const int turn = turn_of(parameters, work, tile);
        if (leads) shared.told[state.count % kTold] = {2 * tile + tiles.keeps_all(tile), turn};
      }
      const auto load = [&](QueryRing& ring, const CUtensorMap& map, T* rows, const float* numbers, float* to) {
        uint64_t* const barrier = ring.acquire(state, leads, kStageBytes);
        if (!leads) return;
        load_tile<QueryTile>(map, barrier, position, work.head, b, rows);
        cute::SM90_BULK_COPY_G2S::copy(numbers + slot * kM, barrier, to, kM * sizeof(float));
      };
      load(shared.q_ring, parameters.q, shared.q[stage], parameters.workspace.lse, shared.lse[stage]);
      load(shared.dy_ring, parameters.dy, shared.dy[stage], parameters.workspace.delta, shared.delta[stage]);
      ++state;
    });
  }

  // The warp that adds tiles of dq to global memory, each when it is its turn. One thread does it.
  static __forceinline__ __device__ void accumulate(const Parameters& parameters, const Work& work, Shared& shared) {
    uint32_t phase = 0;
    int taken = 0;
    for_each_query_tile(parameters, work, [&](int tile, int64_t slot, const auto&) {
      if (threadIdx.x % 32 != 0) return;
      int turn = 0;
      if constexpr (!kBits) turn = turn_of(parameters, work, tile);
      int* turns = parameters.workspace.turns + slot;
      float* dq = parameters.workspace.dq + slot * kM * kD;
      shared.dq_is_there.wait(phase);
      if constexpr (kBits) turn = shared.told[taken++ % kTold].y;
      while (load_acquire(turns) != turn) {
      }
      fence_proxies();
      constexpr uint32_t kBytes = kM * kD * sizeof(float);
      if (turn == 0)
        store_bulk(dq, shared.dq, kBytes);
      else
        add_bulk(dq, shared.dq, kBytes);
      commit_bulk();
      wait_for_bulk_reads();
      shared.dq_is_free.arrive();
      wait_for_bulk();
      fence_proxies();
      store_release(turns, turn + 1);
      phase ^= 1;
    });
  }

  // What a thread knows of the pairs of a tile's queries with its warp's keys, with a mask or dropout.
  struct Pairs {
    // Finds what is kept in a tile, while its scores are computed. Queries behind the last one have no probability.
    __forceinline__ __device__ void look(const Attention& call, const Work& work, const MaskRows& mask, int tile,
                                         bool mask_keeps_all) {
      const int warp = (threadIdx.x - kWarpgroup) / 32 % (4 * kKeyGroups), key = work.keys.begin + warp * 16;
      const auto query = [&](int in_tile) {
        const int query = tile * kM + in_tile, last = work.sequence.queries - 1;
        return query < last ? query : last;
      };
      all_are_kept = mask_keeps_all;
      if (!all_are_kept) {
        kept = {};
        kept.template find<2>(
            [&](int in_tile) { return mask.template kept<16>(query(in_tile), key, work.sequence.kept); });
      }
      if (call.dropout.seed) {
        const auto dropout = call.dropout.template prepared<float>();
        const int64_t row = call.row(work.b, work.sequence, work.head, 0);
        drawn = {};
        drawn.template find<1>(
            [&](int in_tile) { return kept_bits<16>(dropout, call.first_probability(row + query(in_tile)) + key); });
      }
    }

    bool all_are_kept;
    ColumnBits<kM> kept, drawn;  // kept by the mask, unless all are
  };

  // A warpgroup that computes: dk and dv of 64 keys.
  static __forceinline__ __device__ void consume(const Parameters& parameters, const Work& work, Shared& shared) {
    const Attention& call = parameters.call;
    const int thread = threadIdx.x - kWarpgroup, warpgroup = cutlass::canonical_warp_group_idx() - 1;
    const int first_key = warpgroup % kKeyGroups * 64;  // of the tile: this warpgroup's
    const Fragment fragment(thread % kWarpgroup);
    const int key_half = warpgroup / kKeyGroups * kKeyFeatures;
    const auto k = KeyTile::rows(shared.k, first_key), v = KeyTile::rows(shared.v, first_key);
    const auto q = QueryTile::rows(shared.q), dy = QueryTile::rows(shared.dy);
    const auto q_right = QueryTile::columns(shared.q, key_half), dy_right = QueryTile::columns(shared.dy, key_half);
    const auto ds_left = DsTile::columns(shared.ds, warpgroup % kQueryGroups * 64);
    const auto k_right = KeyTile::columns(shared.k, warpgroup / kQueryGroups * kQueryFeatures);
    float dk[kKeyFeatures / 2] = {}, dv[kKeyFeatures / 2] = {};

    if (!work.queries.is_empty()) {
      shared.keys_are_there.wait(0);
      const int kept = work.sequence.kept - work.keys.begin;
      if (kept < kN && (call.offsets_q || call.lengths)) {
        clear_rows<KeyTile>(shared.k, kept, thread, kConsumers * kWarpgroup);
        clear_rows<KeyTile>(shared.v, kept, thread, kConsumers * kWarpgroup);
        cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 0);
      }
    }
    State state;
    uint32_t phase = 1;
    Pairs pairs;
    // All threads write the same: no one has to wait, and it takes no registers.
    if (kBits && call.has_mask) shared.mask = MaskRows(call, work.b, work.sequence, work.head);
    const auto take = [&](int tile) {
      const int stage = state.stage, offset = stage * QueryTile::kOffset;
      float scores[kM / 2], slopes[kM / 2];
      shared.q_ring.wait(state);
      bool mask_keeps_all = true;
      if constexpr (kBits) {
        const int told = shared.told[state.count % kTold].x;
        tile = told / 2, mask_keeps_all = told % 2;
      }
      if (call.offsets_q && (tile + 1) * kM > work.sequence.queries) {  // rows of the next sequence
        const int rows = work.sequence.queries - tile * kM;
        shared.dy_ring.wait(state);
        clear_rows<QueryTile>(shared.q[stage], rows, thread, kConsumers * kWarpgroup);
        clear_rows<QueryTile>(shared.dy[stage], rows, thread, kConsumers * kWarpgroup);
        cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 0);
      }
      multiply<T, /*kAdds=*/false>(k, q + offset, scores);
      shared.dy_ring.wait(state);
      multiply<T, /*kAdds=*/false>(v, dy + offset, slopes);
      if constexpr (kBits) pairs.look(call, work, shared.mask, tile, mask_keeps_all);
      wait_for<1>(dk, scores);
      if (kRunsOn && state.count > 0) shared.q_ring.release((stage + 1) % kStages);  // last tile

      // p = 2^(score - lse).
      uint32_t p[kM / 4], ds[kM / 4];
      const float factor = parameters.factor;
#pragma unroll
      for (int i = 0; i < kM / 2; ++i)
        scores[i] = exp2_or_zero(fmaf(scores[i], factor, -shared.lse[stage][fragment.column(i)]));
      mask(call, work, fragment, first_key, tile, scores);
      if constexpr (kBits)
        if (!pairs.all_are_kept) pairs.kept.each([&](int i, bool kept) { scores[i] = kept ? scores[i] : 0; });
      round_to<T>(p, scores);
      if constexpr (kBits)
        if (call.dropout.seed)
          pairs.drawn.each([&](int i, bool kept) { p[i / 2] &= kept ? ~0u : i % 2 ? 0x0000ffffu : 0xffff0000u; });
      multiply<T, /*kAdds=*/true>(p, dy_right + offset, dv);
      wait_for<1>(slopes);
      if constexpr (kBits)
        if (call.dropout.seed) {
          const auto scale = static_cast<float>(call.dropout.scale);
          pairs.drawn.each([&](int i, bool kept) { slopes[i] = kept ? slopes[i] * scale : 0; });
        }
#pragma unroll
      for (int i = 0; i < kM / 2; ++i) {
        slopes[i] = scores[i] * (slopes[i] - shared.delta[stage][fragment.column(i)]);
      }
      round_to<T>(ds, slopes);

      // ds to shared memory. Whoever has come here has read what was there before, for dq.
      if (warpgroup < kKeyGroups)
        store_fragment<DsTile>(shared.ds[stage] + (first_key + thread % kWarpgroup / 32 * 16) * DsTile::kPanel, 0, ds);
      cutlass::arch::fence_view_async_shared();
      cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 0);
      float dq[kDqPart];
      const auto store_dq = [&](int part) {
#pragma unroll
        for (int i = 0; i < kDqPart; i += 4)
          *reinterpret_cast<float4*>(shared.dq + (part * kDqPart + i) * kConsumers * kWarpgroup + thread * 4) =
              make_float4(dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
      };
      multiply<T, /*kAdds=*/false>(ds_left + stage * DsTile::kOffset, k_right, dq);
      multiply<T, /*kAdds=*/true>(ds, q_right + offset, dk);
      cute::warpgroup_wait<2>();
      shared.dy_ring.release(stage);
      wait_for<1>(dq);
      shared.dq_is_free.wait(phase);
      phase ^= 1;
      store_dq(0);
      if constexpr (kDqParts == 2) {
        constexpr int kNext = KeyTile::offset_of_columns(kQueryFeatures / kDqParts);
        multiply<T, /*kAdds=*/false>(ds_left + stage * DsTile::kOffset, k_right + kNext, dq);
        wait_for<0>(dq, dk);
        store_dq(1);
      }
      cutlass::arch::fence_view_async_shared();
      __syncwarp();
      if (thread % 32 == 0) shared.dq_is_there.arrive();
      if constexpr (!kRunsOn) {
        wait_for<0>(dk);
        shared.q_ring.release(stage);
        if constexpr (kStages == 1) cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 1);  // ds has been read
      }
      ++state;
    };
    if constexpr (kBits)
      for (int left = query_tiles(work).count(); left > 0; --left) take(0);  // it is told which
    else
      for_each_query_tile(parameters, work, [&](int tile, int64_t, const auto&) { take(tile); });
    wait_for<0>(dk);
    if (!join_heads(parameters, work, shared, thread, dk, dv)) return;

    // By way of the memory of v and k, which nobody reads any more.
    const int64_t b = call.place(work.b), first = work.sequence.first_key + work.keys.begin;
    const int first_row = first_key + thread % kWarpgroup / 32 * 16, count = work.keys.end - work.keys.begin;
    const auto store = [&](auto& values, double factor, T* tile, const HeadRows& rows, int columns) {
      const float factors[2] = {static_cast<float>(factor), static_cast<float>(factor)};
      T* const first_place = rows.row<T>(b, first, work.key_head);
      store_rows<KeyTile>(first_row, key_half, factors, values, tile, count, columns,
                          [&](int row) { return first_place + row * rows.position; });
    };
    cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 0);
    store(dv, kBits ? call.dropout.scale : 1, shared.v, call.dv, call.dim_v);
    store(dk, call.scale, shared.k, call.dk, call.dim);
  }

  // Adds up the dk and dv of heads that share keys, in their order; true for the last one, which then has the sums. All
  // others leave theirs in global memory, as the threads have them: value / 4, thread, value % 4.
  template <int kValues>
  static __forceinline__ __device__ bool join_heads(const Parameters& parameters, const Work& work, Shared& shared,
                                                    int thread, float (&dk)[kValues], float (&dv)[kValues]) {
    const int group = parameters.call.group, turn = work.head % group;
    if (group == 1) return true;
    constexpr int kThreads = kConsumers * kWarpgroup;
    constexpr uint32_t kBytes = kValues * kThreads * sizeof(float);
    static_assert(kBytes == kN * kD * sizeof(float));
    const int64_t slot =
        work.key_head * parameters.key_slots.count() + parameters.key_slots.slot(work.b, work.keys.begin / kN);
    int* turns = parameters.workspace.key_turns + slot;
    float* sums = parameters.workspace.dk_dv + slot * 2 * kN * kD;
    const auto wait = [&] {
      if (thread == 0)
        while (load_acquire(turns) != turn) {
        }
    };
    if (turn == group - 1) {
      wait();
      cutlass::arch::NamedBarrier::sync(kThreads, 0);
      fence_proxies();
#pragma unroll
      for (int i = 0; i < kValues; i += 4) {
        const auto* of_thread = reinterpret_cast<const float4*>(sums + i * kThreads + thread * 4);
        const float4 a = __ldcg(of_thread), b = __ldcg(of_thread + kValues * kThreads / 4);
        dk[i] += a.x, dk[i + 1] += a.y, dk[i + 2] += a.z, dk[i + 3] += a.w;
        dv[i] += b.x, dv[i + 1] += b.y, dv[i + 2] += b.z, dv[i + 3] += b.w;
      }
      return true;
    }
    // The memory of k and v has room for one of both.
    const auto leave = [&](const float (&values)[kValues], float* memory, float* to) {
#pragma unroll
      for (int i = 0; i < kValues; i += 4)
        *reinterpret_cast<float4*>(memory + i * kThreads + thread * 4) =
            make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
      cutlass::arch::fence_view_async_shared();
      cutlass::arch::NamedBarrier::sync(kThreads, 0);
      if (thread != 0) return;
      if (turn == 0)
        store_bulk(to, memory, kBytes);
      else
        add_bulk(to, memory, kBytes);
      commit_bulk();
    };
    static_assert(offsetof(Shared, q) - offsetof(Shared, k) >= kBytes);
    cutlass::arch::NamedBarrier::sync(kThreads, 0);  // nobody reads the keys any more
    wait();
    fence_proxies();
    auto* memory = reinterpret_cast<float*>(shared.k);
    leave(dk, memory, sums);
    if (thread == 0) wait_for_bulk_reads();
    cutlass::arch::NamedBarrier::sync(kThreads, 0);
    leave(dv, memory, sums + kN * kD);
    if (thread == 0) {
      wait_for_bulk();
      fence_proxies();
      store_release(turns, turn + 1);
    }
    return false;
  }

  // Masked probabilities become zeros, whatever their scores. Most tiles have none. A row is a key here, a column a
  // query.
  static __forceinline__ __device__ void mask(const Attention& call, const Work& work, const Fragment& fragment,
                                              int first_key, int tile, float (&p)[kM / 2]) {
    const Range queries = queries_of(work, tile);
    const Range of_all = call.band.keys_of_all(work.sequence, queries);
    const bool whole = of_all.begin <= work.keys.begin && work.keys.begin + kN <= of_all.end;
    if (whole) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = work.keys.begin + first_key + fragment.row(r), first = queries.begin + fragment.pair;
      Range seen = call.band.queries(work.sequence, {key, key + 1});
      seen = key < work.sequence.kept ? Range{seen.begin - first, seen.end - first} : Range{};
#pragma unroll
      for (int i = 0; i < kM / 2; ++i) {
        if (i / 2 % 2 != r) continue;
        if (!seen.has(i / 4 * 8 + i % 2)) p[i] = 0;
      }
    }
  }

  static __forceinline__ __device__ void run(const Parameters& parameters, Shared& shared) {
    const int warp = cutlass::canonical_warp_idx_sync();
    const bool produces = cutlass::canonical_warp_group_idx() == 0;
    if (threadIdx.x == 0) {
      for (const CUtensorMap* map : {&parameters.q, &parameters.k, &parameters.v, &parameters.dy})
        cute::prefetch_tma_descriptor(map);
      shared.q_ring.init(kConsumers);
      shared.dy_ring.init(kConsumers);
      shared.keys_are_there.init(1);
      shared.dq_is_there.init(kConsumers * kWarpgroup / 32);
      shared.dq_is_free.init(1);
    }
    cutlass::arch::fence_barrier_init();
    __syncthreads();
    begin_kernel();
    const Work work = uniform(Backward::work(parameters, blockIdx.x));
    if (work.keys.is_empty()) return;
    if (produces) {
      cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      if (work.queries.is_empty()) return;
      if (warp == 0) produce(parameters, work, shared);
      if (warp == 1) accumulate(parameters, work, shared);
    } else {
      cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      consume(parameters, work, shared);
    }
  }

  // Global memory is written by the bulk copy engine here and read or added to by that of another block: the order of
  // the two is that of the flags between them.
  static __device__ int load_acquire(const int* flag) {
    int value;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
  }
  static __device__ void store_release(int* flag, int value) {
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
  }
  static __device__ void fence_proxies() { asm volatile("fence.proxy.async;" ::: "memory"); }
  static __device__ void store_bulk(float* to, const float* from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(cute::cast_smem_ptr_to_uint(from)), "r"(bytes)
                 : "memory");
  }
  static __device__ void add_bulk(float* to, const float* from, uint32_t bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                 "r"(cute::cast_smem_ptr_to_uint(from)), "r"(bytes)
                 : "memory");
  }
  static __device__ void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
  // Until shared memory is free again; until what was written is there.
  static __device__ void wait_for_bulk_reads() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
  static __device__ void wait_for_bulk() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

  // Before: a warp for each row of queries, those behind the end of a sequence too.
  static __device__ void prepare(const Parameters& parameters) {
    const Attention& call = parameters.call;
    begin_kernel();
    const int64_t row = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
    const int lane = threadIdx.x % kLanes;
    if (row >= parameters.workspace.slots * kM) return;
    const int64_t slots = parameters.slots.count(), slot = row / kM % slots;
    const int head = static_cast<int>(row / kM / slots);
    if (lane == 0)
      for (int64_t i = row; i < parameters.workspace.key_slots; i += parameters.workspace.slots * kM)
        parameters.workspace.key_turns[i] = 0;
    if (row % kM == 0 && lane == 0) parameters.workspace.turns[row / kM] = 0;
    const auto [b, tile] = parameters.slots.at(slot);
    const int query = static_cast<int>(tile * kM + row % kM);
    const Sequence sequence = call.sequence(b);
    float lse = INFINITY, delta = 0;
    if (query < sequence.queries) {
      const int64_t position = sequence.first_query + query, outer = call.offsets_q ? 0 : b;
      const float given = *call.lse.row<float>(outer, position, head);
      const T *y = call.y.row<T>(outer, position, head), *dy = call.dy.row<T>(outer, position, head);
      for (int i = 8 * lane; i < call.dim_v; i += 8 * kLanes) {
        const auto a = *reinterpret_cast<const Pack<T>*>(y + i), c = *reinterpret_cast<const Pack<T>*>(dy + i);
#pragma unroll
        for (int j = 0; j < kPackSize<T>; ++j) delta += element(a, j) * element(c, j);
      }
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2) delta += __shfl_xor_sync(__activemask(), delta, step);
      // That of a row whose kept scores are all -inf stays so: -inf less -inf is NaN, as are its probabilities.
      if (!call.band.keys(sequence, query).is_empty()) lse = given * static_cast<float>(kLog2E);
    }
    if (lane == 0) {
      parameters.workspace.lse[row] = lse;
      parameters.workspace.delta[row] = delta;
    }
  }
  static constexpr int kLanes = 8;  // of a row

  // After: dq, rounded. A block has a slot, and a thread the values that it had of it in the kernel before.
  static __device__ void finish(const Parameters& parameters) {
    const Attention& call = parameters.call;
    begin_kernel();
    const int64_t slots = parameters.slots.count(), slot = blockIdx.x % slots;
    const int head = static_cast<int>(blockIdx.x / slots);
    const auto [b, tile] = parameters.slots.at(slot);
    const Sequence sequence = call.sequence(b);
    const int begin = tile * kM, end = begin + kM < sequence.queries ? begin + kM : sequence.queries;
    if (begin >= end) return;
    const Range keys = call.band.keys(sequence, Range{begin, end});
    const bool is_seen = !keys.is_empty() && Tiles(parameters.mask, call, static_cast<int>(b), head)
                                                     .keys(tile, {keys.begin / kN, (keys.end - 1) / kN + 1})
                                                     .count() > 0;
    const int thread = threadIdx.x, warpgroup = thread / kWarpgroup;
    const float* sums = parameters.workspace.dq + int64_t(blockIdx.x) * kM * kD;
    float dq[kDqValues];
#pragma unroll
    for (int i = 0; i < kDqValues; i += 4) {
      const auto four = is_seen ? *reinterpret_cast<const float4*>(sums + i * kConsumers * kWarpgroup + thread * 4)
                                : float4{0, 0, 0, 0};
      dq[i] = four.x, dq[i + 1] = four.y, dq[i + 2] = four.z, dq[i + 3] = four.w;
    }
    __shared__ alignas(1024) T memory[QueryTile::kSize];
    const int first_row = warpgroup % kQueryGroups * 64 + thread % kWarpgroup / 32 * 16;
    const float scale = static_cast<float>(call.scale), factors[2] = {scale, scale};
    T* const rows = call.dq.row<T>(call.place(b), sequence.first_query + begin, head);
    store_rows<QueryTile>(first_row, warpgroup / kQueryGroups * kQueryFeatures, factors, dq, memory, end - begin,
                          call.dim, [&](int row) { return rows + row * call.dq.position; });
  }
};

template <class Kernel>
__global__ void __launch_bounds__(256)
    attention_backward_prepare(const __grid_constant__ typename Kernel::Parameters parameters) {
  Kernel::prepare(parameters);
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1)
    attention_backward_products(const __grid_constant__ typename Kernel::Parameters parameters) {
  extern __shared__ __align__(1024) char memory[];
  Kernel::run(parameters, *reinterpret_cast<typename Kernel::Shared*>(memory));
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kConsumers* kWarpgroup)
    attention_backward_finish(const __grid_constant__ typename Kernel::Parameters parameters) {
  Kernel::finish(parameters);
}

template <class Kernel>
Status launch_backward(const Attention& call, void* workspace, const Context& context) {
  using KeyTile = typename Kernel::KeyTile;
  using QueryTile = typename Kernel::QueryTile;
  constexpr int kM = Kernel::kM, kN = Kernel::kN, kD = Kernel::kD;
  // Also makes the GPU's context that of this thread, which describe_rows needs.
  FUSEDOPS_TRY(allow_shared_memory(attention_backward_products<Kernel>, sizeof(typename Kernel::Shared)));
  MaskTiles mask;
  if (call.has_mask) {
    mask = {call, kM, kN, static_cast<char*>(workspace) + BackwardSlots(call).bytes()};
    FUSEDOPS_TRY((find_mask_tiles<kM, kN>(mask, context)));
  }
  // While a block walks over q and dy, others of its head should find them, and the sums of dq, in the L2 cache.
  const int64_t bytes_per_head = int64_t(call.queries) * (2 * 2 * kD + 4 * kD);
  const auto key_slots = Slots<kN>::of_keys(call);
  const auto order = Order<kN>::of(key_slots, call.heads, bytes_per_head, 1, Kernel::last_first(call), false);
  typename Kernel::Parameters parameters{.call = call,
                                         .order = order,
                                         .slots = Slots<kM>::of_queries(call),
                                         .key_slots = key_slots,
                                         .workspace = Kernel::Workspace::of(call, workspace),
                                         .mask = mask,
                                         .factor = factor_of(call)};
  const int64_t sequences = call.offsets_q ? 1 : call.sequences;
  const auto describe_queries = [&](const HeadRows& rows, int features, CUtensorMap* map) {
    return describe_rows<QueryTile>(rows, call.queries, features, call.heads, sequences, kM, map);
  };
  const auto describe_keys = [&](const HeadRows& rows, int features, CUtensorMap* map) {
    return describe_rows<KeyTile>(rows, call.keys, features, call.key_heads, sequences, kN, map);
  };
  FUSEDOPS_TRY(describe_queries(call.q, call.dim, &parameters.q));
  FUSEDOPS_TRY(describe_queries(call.dy, call.dim_v, &parameters.dy));
  FUSEDOPS_TRY(describe_keys(call.k, call.dim, &parameters.k));
  FUSEDOPS_TRY(describe_keys(call.v, call.dim_v, &parameters.v));
  const int64_t rows = parameters.workspace.slots * kM;
  FUSEDOPS_TRY(
      launch(context, attention_backward_prepare<Kernel>, Grid{(rows * Kernel::kLanes + 255) / 256, 256}, parameters));
  FUSEDOPS_TRY(launch(context, attention_backward_products<Kernel>,
                      Grid{order.tasks(), Kernel::kThreads, sizeof(typename Kernel::Shared)}, parameters));
  return launch(context, attention_backward_finish<Kernel>,
                Grid{parameters.workspace.slots, Kernel::kConsumers * kWarpgroup}, parameters);
}

// The tiles by the number of features. With a mask or dropout 128 are the most: takes_sm90_backward.
template <class T, bool kBits>
Status backward(const Attention& call, void* workspace, const Context& context) {
  const int features = BackwardSlots(call).features;
  if (features == 64) return launch_backward<Backward<T, 128, 128, 64, kBits>>(call, workspace, context);
  if constexpr (!kBits) {
    if (features == 192) return launch_backward<Backward<T, 64, 64, 192, kBits>>(call, workspace, context);
    if (features == 256) return launch_backward<Backward<T, 64, 64, 256, kBits>>(call, workspace, context);
  }
  return launch_backward<Backward<T, 64, 128, 128, kBits>>(call, workspace, context);
}

}  // namespace fusedops::cuda::sm90
