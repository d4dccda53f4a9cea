// Attention's backward for 16 bits on compute capability 9.x. Limit: the tensor cores.
//
// A block owns a tile of keys and loops over the tiles of queries of one head that see them. A producer warp copies
// tiles of q and dy into rings in shared memory. Two consumer warpgroups hold dk and dv of 64 keys each in registers.
// Scores and their gradients are computed transposed, [keys, queries], so that they stay in registers as left operands
// of dk and dv. ds also goes to shared memory, for dq. The product for dk overlaps with the store of dq and the next
// tile's scores, so that the tensor cores do not idle between two tiles.
//
// With more than 128 features registers only suffice for 64 keys, and each warpgroup has half of the features. Both
// compute the same scores: 7 products per tile instead of 5, but no exchange.
//
// dq is summed over blocks in float32 in global memory, always in the order of the keys: a dq semaphore per tile of
// queries orders the blocks. One or two warps wait for the semaphore and add the tile by a bulk reduction. A block
// waits only for earlier blocks of the grid, so there is no deadlock. Causal attention takes the keys from the last on:
// a block begins with the queries on its diagonal, and the next block has already added its dq when the block needs it.
// The longest blocks of a head then come last, and most multiprocessors would be idle at the end of the grid. The last
// heads therefore take the keys from the first and the queries from the last on.
//
// Each query head has its own block, even if heads share keys: few key heads would leave multiprocessors idle. dk and
// dv are then summed in float32 in the order of the heads, by another semaphore; the last head rounds.
//
// With a mask the producer skips tiles without a visible key and passes the index of each loaded tile.
//
// Three kernels: the first computes delta and scales lse, the last rounds dq.
//
// Source: Shah et al., "FlashAttention-3: Fast and accurate attention with asynchrony and low-precision", 2024.
#pragma once

#include "core/common/ceil_div.h"
#include "ops/attention/attention_sm90_backward_accumulate.cuh"
#include "ops/attention/attention_sm90_backward_consumer.cuh"
#include "ops/attention/attention_sm90_backward_loader.cuh"
#include "ops/attention/attention_sm90_backward_preprocess.cuh"

namespace fusedops::cuda::sm90 {

template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kMasked, Terms kTerms>
__forceinline__ __device__ void Backward<Value, kTileQueries, kTileKeys, kFeatures, kMasked, kTerms>::run(
    const Parameters& parameters, Shared& shared) {
  const int warp = cutlass::canonical_warp_idx_sync();
  const bool is_producer = cutlass::canonical_warp_group_idx() == 0;
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&parameters.q, &parameters.k, &parameters.v, &parameters.dy})
      cute::prefetch_tma_descriptor(map);
    shared.q_ring.init(kConsumers);
    shared.dy_ring.init(kConsumers);
    if constexpr (kHasBiasTiles) shared.bias_ring.init(kConsumers * kWarpgroup / 32);
    shared.keys_full.init(1);
    for (auto& full : shared.dq_full) full.init(kConsumers * kWarpgroup / 32);
    for (auto& empty : shared.dq_empty) empty.init(1);
  }
  cutlass::arch::fence_barrier_init();
  __syncthreads();
  begin_kernel();
  const Work work = uniform(Backward::work(parameters, blockIdx.x));
  if (work.keys.is_empty()) return;
  if (is_producer) {
    cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
    if (work.queries.is_empty()) return;
    if (warp == 0) produce(parameters, work, shared);
    if (0 < warp && warp <= kAccumulators) accumulate(parameters, work, shared, warp - 1);
    if constexpr (kHasBiasTiles)
      if (warp == 2) produce_bias(parameters, work, shared);
  } else {
    cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
    consume(parameters, work, shared);
  }
}

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
  FUSEDOPS_TRY(allow_shared_memory(attention_backward_products<Kernel>, sizeof(typename Kernel::Shared)));
  MaskTiles mask;
  if (call.has_mask) {
    mask = {call, kM, kN, static_cast<char*>(workspace) + BackwardSlots(call).bytes()};
    FUSEDOPS_TRY((find_mask_tiles<kM, kN>(mask, context)));
  }
  // q, dy and the sums of dq of a section's heads should stay in L2, since all blocks of a head read them.
  const int64_t bytes_per_head = int64_t(call.queries) * (2 * 2 * kD + 4 * kD);
  const auto key_slots = Slots<kN>::of_keys(call);
  // Packed sequences, of unknown lengths, may be short. Blocks of a sequence that begin one after another, with the
  // same queries, wait for each other's sums of dq: those of several heads take turns. Reversed ones begin with other
  // queries.
  const bool is_reversed = Kernel::is_reversed(call);
  const int min_pairs = call.offsets_q && !is_reversed ? 16 : 1;
  const int late_heads = Kernel::late_heads(call), early_heads = call.heads - late_heads;
  const auto scheduler = TileScheduler<kN>::of(key_slots, early_heads, bytes_per_head, min_pairs, is_reversed, false);
  // Sections of equal size, since the last one ends the grid.
  constexpr int64_t kLateSection = 64 << 20;
  const int64_t late_pairs = (call.offsets_q ? 1 : call.sequences) * late_heads;
  const int64_t late_sections = std::max<int64_t>(ceil_div(late_pairs * bytes_per_head, kLateSection), 1);
  const auto min_late_pairs = static_cast<int>(ceil_div(late_pairs, late_sections));
  const auto late_scheduler =
      TileScheduler<kN>::of(key_slots, late_heads, bytes_per_head, min_late_pairs, false, false);
  typename Kernel::Parameters parameters{.call = call,
                                         .scheduler = scheduler,
                                         .late_scheduler = late_scheduler,
                                         .first_late_head = early_heads,
                                         .slots = Slots<kM>::of_queries(call),
                                         .key_slots = key_slots,
                                         .workspace = Kernel::Workspace::of(call, workspace),
                                         .mask = mask,
                                         .factor = factor_of(call)};
  const int64_t sequences = call.offsets_q ? 1 : call.sequences;
  FUSEDOPS_TRY((describe_inputs<QueryTile, KeyTile>(call, sequences, kM, kN, &parameters)));
  if constexpr (Kernel::kHasBiasTiles) {
    FUSEDOPS_TRY(BiasLoads::of<kM>(call, &parameters.bias));
    if (parameters.bias.is_batch_inner)
      for (auto* each : {&parameters.scheduler, &parameters.late_scheduler}) each->take_sequences_first();
  }
  const int64_t rows = parameters.workspace.slots * kM;
  FUSEDOPS_TRY(
      launch(context, attention_backward_prepare<Kernel>, Grid{(rows * Kernel::kLanes + 255) / 256, 256}, parameters));
  if (call.dsinks) {
    const RowStatistics statistics{parameters.workspace.lse, parameters.workspace.delta, 1, rows / call.heads, true};
    FUSEDOPS_TRY(sum_sinks(call, statistics, context));
  }
  if (call.dbias) {
    const int64_t of_sequence = parameters.slots.tiles * kM;
    const auto statistics = [&](float* numbers) {
      return HeadRows{numbers, of_sequence, 1, call.sequences * of_sequence};
    };
    const HeadRows lse = statistics(parameters.workspace.lse), deltas = statistics(parameters.workspace.delta);
    const bool has_tiles =
        Kernel::kHasBiasTiles && !call.bias.is_f32() && reinterpret_cast<uintptr_t>(call.dbias) % 16 == 0;
    FUSEDOPS_TRY(has_tiles ? attention_dbias_sm90(call, lse, deltas, static_cast<int>(of_sequence), context)
                           : attention_dbias(call, deltas, context));
  }
  FUSEDOPS_TRY(launch(
      context, attention_backward_products<Kernel>,
      Grid{scheduler.work_tiles() + late_scheduler.work_tiles(), Kernel::kThreads, sizeof(typename Kernel::Shared)},
      parameters));
  return launch(context, attention_backward_finish<Kernel>,
                Grid{parameters.workspace.slots, Kernel::kConsumers * kWarpgroup}, parameters);
}

// Selects the tile by the number of features; at most 128 with a mask or dropout (takes_sm90_backward).
template <class T, bool kMasked, Terms kTerms = Terms::none>
Status backward(const Attention& call, void* workspace, const Context& context) {
  const int features = BackwardSlots(call).features;
  if (features == 64) return launch_backward<Backward<T, 128, 128, 64, kMasked, kTerms>>(call, workspace, context);
  if constexpr (!kMasked) {
    if (features == 192) return launch_backward<Backward<T, 64, 64, 192, kMasked, kTerms>>(call, workspace, context);
    if (features == 256) return launch_backward<Backward<T, 64, 64, 256, kMasked, kTerms>>(call, workspace, context);
  }
  return launch_backward<Backward<T, 64, 128, 128, kMasked, kTerms>>(call, workspace, context);
}

}  // namespace fusedops::cuda::sm90
