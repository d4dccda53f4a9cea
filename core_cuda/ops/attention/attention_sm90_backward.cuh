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

#include "ops/attention/attention_sm90_backward_consumer.cuh"
#include "ops/attention/attention_sm90_backward_loader.cuh"
#include "ops/attention/attention_sm90_backward_passes.cuh"
#include "ops/attention/attention_sm90_backward_sums.cuh"

namespace fusedops::cuda::sm90 {

template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kBits>
__forceinline__ __device__ void Backward<Value, kTileQueries, kTileKeys, kFeatures, kBits>::run(
    const Parameters& parameters, Shared& shared) {
  const int warp = cutlass::canonical_warp_idx_sync();
  const bool is_producer = cutlass::canonical_warp_group_idx() == 0;
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&parameters.q, &parameters.k, &parameters.v, &parameters.dy})
      cute::prefetch_tma_descriptor(map);
    shared.q_ring.init(kConsumers);
    shared.dy_ring.init(kConsumers);
    shared.keys_full.init(1);
    shared.dq_full.init(kConsumers * kWarpgroup / 32);
    shared.dq_empty.init(1);
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
    if (warp == 1) accumulate(parameters, work, shared);
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
  // While a block walks over q and dy, others of its head should find them, and the sums of dq, in the L2 cache.
  const int64_t bytes_per_head = int64_t(call.queries) * (2 * 2 * kD + 4 * kD);
  const auto key_slots = Slots<kN>::of_keys(call);
  const auto scheduler =
      TileScheduler<kN>::of(key_slots, call.heads, bytes_per_head, 1, Kernel::is_reversed(call), false);
  typename Kernel::Parameters parameters{.call = call,
                                         .scheduler = scheduler,
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
                      Grid{scheduler.work_tiles(), Kernel::kThreads, sizeof(typename Kernel::Shared)}, parameters));
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
