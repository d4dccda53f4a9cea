// Packs that each thread prefetches into shared memory several steps ahead, which keeps memory busy while the block
// reduces a row and synchronizes. A thread reads only its own prefetched packs, so no barrier is needed.
#pragma once

#include <cuda_pipeline.h>

#include "core/cuda/pack.cuh"

namespace fusedops::cuda {

// The dynamic shared memory of a block. Lines of 128 bytes arrive from the L2 cache; behind static variables, such as
// two mbarriers, each would otherwise straddle two lines of shared memory.
__device__ inline int4* prefetch_memory() {
  extern __shared__ __align__(128) int4 memory_of_prefetched_packs[];
  return memory_of_prefetched_packs;
}

// A ring of kStages stages with kPacks packs per step and thread.
template <class T, int kThreads, int kStages, int kPacks>
class Prefetch {
 public:
  static constexpr int kBytes = kThreads * kStages * kPacks * int(sizeof(Pack<T>));

  __device__ explicit Prefetch(void* memory) : packs_(static_cast<Pack<T>*>(memory) + threadIdx.x) {}

  // Starts the copy of pack i of a step: zeros if it is absent.
  __device__ void prefetch(int step, int i, const T* from, bool present) const {
    __pipeline_memcpy_async(place(step, i), present ? from : nullptr, sizeof(Pack<T>), present ? 0 : sizeof(Pack<T>));
  }

  // Ends the copies of a step. Every step must be committed, even one without copies.
  __device__ void commit() const { __pipeline_commit(); }

  // Waits for the copies of a step; those of kStages - 1 later steps may be in flight.
  __device__ void wait() const { __pipeline_wait_prior(kStages - 1); }

  __device__ Pack<T>& get(int step, int i) const { return *place(step, i); }

 private:
  __device__ Pack<T>* place(int step, int i) const { return packs_ + (step % kStages * kPacks + i) * kThreads; }

  Pack<T>* packs_;
};

}  // namespace fusedops::cuda
