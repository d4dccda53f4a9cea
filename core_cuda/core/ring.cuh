// A ring of stages in shared memory that the copy engine fills ahead of their use: memory stays busy while the threads
// of a block sum a row and wait for each other.
//
// CUDA Programming Guide, "Asynchronous data copies using the Tensor Memory Accelerator": bulk copies of multiples of
// 16 bytes, counted by a barrier in shared memory. They exist from compute capability 9.0 on.
#pragma once

#include <cstdint>
#include <cuda/ptx>

namespace fusedops::cuda {

#if __CUDA_ARCH__ >= 900
inline constexpr bool kHasBulkCopies = true;
#else
inline constexpr bool kHasBulkCopies = false;
#endif

inline constexpr int kMostStages = 8;

class Ring {
 public:
  // `barriers` are kMostStages words of shared memory. Every thread of the block comes here.
  __device__ Ring(char* memory, uint64_t* barriers, int stages, int stage_bytes)
      : memory_(memory), barriers_(barriers), stages_(stages), stage_bytes_(stage_bytes) {
    if constexpr (kHasBulkCopies) {
      if (threadIdx.x == 0) {
        for (int stage = 0; stage < stages; ++stage) ::cuda::ptx::mbarrier_init(&barriers[stage], 1);
        ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
      }
      __syncthreads();
    }
  }

  // By one warp, for steps 0, 1, ... in turn: says how many bytes are going to arrive; then each lane may copy() some.
  __device__ void expect(int step, uint32_t bytes) {
    if constexpr (kHasBulkCopies) {
      if (threadIdx.x % 32 == 0)
        ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                               ::cuda::ptx::space_shared, &barriers_[step % stages_], bytes);
      __syncwarp();
    }
  }

  __device__ void copy(int step, int offset, const void* from, uint32_t bytes) {
    const int stage = step % stages_;
    if constexpr (kHasBulkCopies)
      ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_cluster, ::cuda::ptx::space_global,
                                 memory_ + stage * stage_bytes_ + offset, from, bytes, &barriers_[stage]);
  }

  // By every thread: waits until all that was expected in the next stage has arrived.
  __device__ const char* wait() {
    const char* stage = memory_ + stage_ * stage_bytes_;
    if constexpr (kHasBulkCopies) {
      while (!::cuda::ptx::mbarrier_try_wait_parity(&barriers_[stage_], parity_)) {
      }
    }
    if (++stage_ == stages_) {
      stage_ = 0;
      parity_ ^= 1;
    }
    return stage;
  }

 private:
  char* memory_;
  uint64_t* barriers_;
  int stages_, stage_bytes_;
  int stage_ = 0;        // the next to be read,
  uint32_t parity_ = 0;  // and how often the ring has gone round, modulo 2
};

}  // namespace fusedops::cuda
