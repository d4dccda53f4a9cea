// Sums of attention's backward over blocks, in float32 in global memory: dq over tiles of keys, dk and dv over heads
// that share keys. Semaphores fix the order.
#pragma once

#include "core/cuda/sm90/bulk_copy.cuh"
#include "ops/attention/attention_sm90_backward_tiles.cuh"

namespace fusedops::cuda::sm90 {

// A warp that adds tiles of dq to global memory in semaphore order, with one thread. Two such warps take turns, and the
// latency of their semaphores overlaps with the computation of the tiles.
template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kMasked, Terms kTerms>
__forceinline__ __device__ void Backward<Value, kTileQueries, kTileKeys, kFeatures, kMasked, kTerms>::accumulate(
    const Parameters& parameters, const Work& work, Shared& shared, int accumulator) {
  constexpr bool kOverlaps = kAccumulators > 1;
  const auto fence = [] { kOverlaps ? fence_global_proxies() : fence_proxies(); };
  uint32_t phase = 0;
  int taken = 0;
  for_each_query_tile(parameters, work, [&](int tile, int64_t slot, const auto&) {
    const int index = taken++;
    if (index % kAccumulators != accumulator || threadIdx.x % 32 != 0) return;
    int semaphore_value = 0;
    if constexpr (!kMasked) semaphore_value = semaphore_value_at(parameters, work, tile);
    int* semaphore = parameters.workspace.dq_semaphores + slot;
    float* dq = parameters.workspace.dq + slot * kM * kD;
    const float* from = shared.dq[index % kDqBuffers];
    const auto wait_for_semaphore = [&] {
      while (load_acquire(semaphore) != semaphore_value) {
      }
    };
    if constexpr (kOverlaps) wait_for_semaphore();
    shared.dq_full[accumulator].wait(phase);
    if constexpr (kMasked) semaphore_value = shared.loaded[index % kLoadedTiles].y;
    if constexpr (!kOverlaps) wait_for_semaphore();
    fence();
    constexpr uint32_t kBytes = kM * kD * sizeof(float);
    if (semaphore_value == 0)
      store_bulk(dq, from, kBytes);
    else
      add_bulk(dq, from, kBytes);
    commit_bulk();
    wait_for_bulk_reads();
    shared.dq_empty[index % kDqBuffers].arrive();
    wait_for_bulk();
    fence();
    store_release(semaphore, semaphore_value + 1);
    phase ^= 1;
  });
}

// Sums dk and dv over heads that share keys, in their order. True for the last head, which gets the sums in registers.
// The others add theirs to global memory in thread order: value / 4, thread, value % 4.
template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kMasked, Terms kTerms>
template <int kValues>
__forceinline__ __device__ bool Backward<Value, kTileQueries, kTileKeys, kFeatures, kMasked, kTerms>::reduce_heads(
    const Parameters& parameters, const Work& work, Shared& shared, int thread, float (&dk)[kValues],
    float (&dv)[kValues]) {
  const int group = parameters.call.group, semaphore_value = work.head % group;
  if (group == 1) return true;
  constexpr int kThreads = kConsumers * kWarpgroup;
  constexpr uint32_t kBytes = kValues * kThreads * sizeof(float);
  static_assert(kBytes == kN * kD * sizeof(float));
  const int64_t slot =
      work.key_head * parameters.key_slots.count() + parameters.key_slots.slot(work.b, work.keys.begin / kN);
  int* semaphore = parameters.workspace.dk_dv_semaphores + slot;
  float* sums = parameters.workspace.dk_dv + slot * 2 * kN * kD;
  const auto wait = [&] {
    if (thread == 0)
      while (load_acquire(semaphore) != semaphore_value) {
      }
  };
  if (semaphore_value == group - 1) {
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
  // The memory of k and v has room for one of dk and dv at a time.
  const auto store_sums = [&](const float (&values)[kValues], float* memory, float* to) {
#pragma unroll
    for (int i = 0; i < kValues; i += 4)
      *reinterpret_cast<float4*>(memory + i * kThreads + thread * 4) =
          make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
    cutlass::arch::fence_view_async_shared();
    cutlass::arch::NamedBarrier::sync(kThreads, 0);
    if (thread != 0) return;
    if (semaphore_value == 0)
      store_bulk(to, memory, kBytes);
    else
      add_bulk(to, memory, kBytes);
    commit_bulk();
  };
  static_assert(offsetof(Shared, q) - offsetof(Shared, k) >= kBytes);
  cutlass::arch::NamedBarrier::sync(kThreads, 0);  // all consumers have read the keys
  wait();
  fence_proxies();
  auto* memory = reinterpret_cast<float*>(shared.k);
  store_sums(dk, memory, sums);
  if (thread == 0) wait_for_bulk_reads();
  cutlass::arch::NamedBarrier::sync(kThreads, 0);
  store_sums(dv, memory, sums + kN * kD);
  if (thread == 0) {
    wait_for_bulk();
    fence_proxies();
    store_release(semaphore, semaphore_value + 1);
  }
  return false;
}

}  // namespace fusedops::cuda::sm90
