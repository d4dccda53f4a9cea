// A pipeline of shared-memory stages between one TMA producer thread and consumer warpgroups.
#pragma once

#include "core/cuda/sm90/wgmma.cuh"
#include "cutlass/arch/barrier.h"

namespace fusedops::cuda::sm90 {

// A position in a pipeline of kStages. The producer and each consumer have their own.
template <int kStages>
struct RingState {
  int stage = 0, count = 0;
  uint32_t phase = 0;

  __device__ void operator++() {
    ++count;
    if (++stage == kStages) stage = 0, phase ^= 1;
  }

  __device__ void operator+=(int stages) {
    count += stages;
    stages += stage;
    stage = stages % kStages;
    phase ^= stages / kStages % 2;
  }
};

template <int kStages>
struct Ring {
  cutlass::arch::ClusterTransactionBarrier full[kStages];
  cutlass::arch::ClusterBarrier empty[kStages];

  // Called by one thread. `consumers`: the number of warpgroups. `producers`: arrivals that make a stage full.
  __device__ void init(int consumers, int producers = 1) {
    for (int i = 0; i < kStages; ++i) {
      full[i].init(producers);
      empty[i].init(consumers);
    }
  }

  // Waits until the stage is free. One thread then announces the bytes of its copies, which complete on the barrier.
  __forceinline__ __device__ uint64_t* acquire(const RingState<kStages>& state, bool leads, uint32_t bytes) {
    empty[state.stage].wait(state.phase ^ 1);
    if (leads) full[state.stage].arrive_and_expect_tx(bytes);
    return reinterpret_cast<uint64_t*>(&full[state.stage]);
  }

  __forceinline__ __device__ void wait(const RingState<kStages>& state) { full[state.stage].wait(state.phase); }

  // Called by all threads of a warpgroup when its products have read the stage.
  __forceinline__ __device__ void release(int stage) {
    if (threadIdx.x % kWarpgroup == 0) empty[stage].arrive();
  }
};

}  // namespace fusedops::cuda::sm90
