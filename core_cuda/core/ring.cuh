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
inline constexpr int kProducerThreads =
    32;  // one warp fills the ring, so that the others never wait for its arithmetic

struct RingBarriers {
  uint64_t full[kMostStages], empty[kMostStages];
};

// Both sides go through the stages in the same order, each thread on one side.
class Ring {
 public:
  // Every thread of the block comes here.
  __device__ Ring(char* memory, RingBarriers& barriers, int stages, int stage_bytes, int consumer_warps)
      : memory_(memory), barriers_(barriers), stages_(stages), stage_bytes_(stage_bytes) {
    if constexpr (kHasBulkCopies) {
      if (threadIdx.x == 0) {
        for (int stage = 0; stage < stages; ++stage) {
          ::cuda::ptx::mbarrier_init(&barriers.full[stage], 1);
          ::cuda::ptx::mbarrier_init(&barriers.empty[stage], static_cast<uint32_t>(consumer_warps));
        }
        ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
      }
      __syncthreads();
    }
  }

  // The producer warp: waits for a free stage and says how many bytes are going to arrive. Then each lane may copy()
  // some of them, and all advance().
  __device__ void expect(uint32_t bytes) {
    if constexpr (kHasBulkCopies) {
      wait_for(&barriers_.empty[stage_], parity_ ^ 1);
      if (threadIdx.x % 32 == 0)
        ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                               ::cuda::ptx::space_shared, &barriers_.full[stage_], bytes);
      __syncwarp();
    }
  }

  __device__ void copy(int offset, const void* from, uint32_t bytes) {
    if constexpr (kHasBulkCopies)
      ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_cluster, ::cuda::ptx::space_global,
                                 memory_ + stage_ * stage_bytes_ + offset, from, bytes, &barriers_.full[stage_]);
  }

  // Rows of `bytes` bytes, `stride` bytes apart in memory, one behind the other in the stage. By all lanes.
  __device__ void copy_rows(int offset, const void* from, int64_t stride, int rows, int bytes) {
    const char* row = static_cast<const char*>(from);
    const int lane = threadIdx.x % 32;
    if (stride == bytes) {
      if (lane == 0 && rows > 0) copy(offset, row, static_cast<uint32_t>(rows * bytes));
    } else {
      for (int r = lane; r < rows; r += 32) copy(offset + r * bytes, row + r * stride, static_cast<uint32_t>(bytes));
    }
  }

  // The consumers: all that was expected in this stage has arrived.
  __device__ const char* wait() const {
    if constexpr (kHasBulkCopies) wait_for(&barriers_.full[stage_], parity_);
    return memory_ + stage_ * stage_bytes_;
  }

  // The consumers have read what they need of this stage. Every lane of a warp comes here.
  __device__ void release() {
    if constexpr (kHasBulkCopies) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) ::cuda::ptx::mbarrier_arrive(&barriers_.empty[stage_]);
    }
    advance();
  }

  __device__ void advance() {
    if (++stage_ < stages_) return;
    stage_ = 0;
    parity_ ^= 1;
  }

 private:
  static __device__ void wait_for(uint64_t* barrier, uint32_t parity) {
    if constexpr (kHasBulkCopies)
      while (!::cuda::ptx::mbarrier_try_wait_parity(barrier, parity)) {
      }
  }

  char* memory_;
  RingBarriers& barriers_;
  int stages_, stage_bytes_;
  int stage_ = 0;
  uint32_t parity_ = 0;  // how often the ring has gone round, modulo 2
};

// Waits for `threads` threads of a block: the consumers, without the producer.
__device__ inline void synchronize_consumers(int threads) { __barrier_sync_count(1, threads); }

}  // namespace fusedops::cuda
