// Packs that each thread fetches for itself, several steps ahead of their use, into shared memory: memory stays busy
// while the threads of a block sum a row and wait for each other. A thread reads what it has fetched and nothing else,
// so that nobody waits for the others' data.
#pragma once

#include <cuda_pipeline.h>

#include "core/cuda/pack.cuh"

namespace fusedops::cuda {

// Room for kStages steps of kPacks packs for each of kThreads threads.
template <class T, int kThreads, int kStages, int kPacks>
class Prefetch {
 public:
  static constexpr int kBytes = kThreads * kStages * kPacks * int(sizeof(Pack<T>));

  __device__ explicit Prefetch(void* memory) : packs_(static_cast<Pack<T>*>(memory) + threadIdx.x) {}

  // Orders pack i of a step: zeros if it is absent.
  __device__ void order(int step, int i, const T* from, bool present) const {
    __pipeline_memcpy_async(place(step, i), present ? from : nullptr, sizeof(Pack<T>), present ? 0 : sizeof(Pack<T>));
  }

  // Ends the orders of a step; every step has such an end.
  __device__ void commit() const { __pipeline_commit(); }

  // Until all that was ordered for a step is there, kStages - 1 later ones being on their way.
  __device__ void wait() const { __pipeline_wait_prior(kStages - 1); }

  __device__ const Pack<T>& get(int step, int i) const { return *place(step, i); }

 private:
  __device__ Pack<T>* place(int step, int i) const { return packs_ + (step % kStages * kPacks + i) * kThreads; }

  Pack<T>* packs_;
};

}  // namespace fusedops::cuda
