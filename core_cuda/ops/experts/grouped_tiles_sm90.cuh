// 16-bit grouped products on compute capability 9.x: shared parts of the kernels of grouped_sm90.cuh.
//
// A producer warpgroup copies what it can through TMA. It copies gathered rows by cp.async, and so the last rows of a
// group that must end with zeros. The consumers are those of gemm_sm90.cuh.
#pragma once

#include "core/cuda/async_copy.cuh"
#include "ops/experts/grouped_kernels.h"
#include "ops/products/gemm_sm90.cuh"
#include "ops/products/gemm_store_sm90.cuh"

namespace fusedops::cuda {

// Copies rows of a GroupRows to a SwizzledTile [kRows, kColumns]. Called by all threads of the producer warpgroup.
// kHasZeros: rows past the end are zeros; else they keep their former values.
template <class T, int kRows, int kColumns, bool kHasZeros>
class RowCopies {
 public:
  // Finds rows [first, first + kRows) of the groups, which end before `end`.
  __device__ void find(const GroupRows& rows, int first, int end) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kRows / 32; ++i) {
      const int row = first + i * 32 + lane;
      numbers_[i] = row >= end ? -1 : rows.rows ? rows.rows[row] : row;
    }
  }

  // Starts the copies of elements [column, column + kColumns), with zeros from element `columns` on.
  __device__ void copy(T* to, const GroupRows& rows, int column, int columns) const {
    const int thread = threadIdx.x % sm90::kWarpgroup, of_chunk = thread % kChunks * 8;
    const int bytes = min(max(columns - column - of_chunk, 0), 8) * int(sizeof(T));
    const T* const from = static_cast<const T*>(rows.data) + column + of_chunk;
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtATime; ++i) {
      const int row = i * kRowsAtATime + thread / kChunks;
      const int number = __shfl_sync(0xffffffff, numbers_[i * kRowsAtATime / 32], row % 32);
      if (!kHasZeros && number < 0) continue;
      copy_async<16>(to + sm90::SwizzledTile<kRows, kColumns>::at(row, of_chunk), from + max(number, 0) * rows.stride,
                     number < 0 ? 0 : bytes);
    }
  }

 private:
  static constexpr int kChunks = kColumns / 8, kRowsAtATime = sm90::kWarpgroup / kChunks;
  static_assert(32 % kRowsAtATime == 0 && kRows % 32 == 0);

  int numbers_[kRows / 32];  // of row i * 32 + lane; -1: past the end
};

// Arrivals of the producer warpgroup that make a stage full, beside the bytes through TMA: one for each thread.
inline constexpr int kProducerArrivals = sm90::kWarpgroup;

// The thread arrives when its copies by cp.async are complete, and does not wait for them.
template <class S>
__forceinline__ __device__ void arrive_after_copies(typename S::Shared& shared, int stage) {
  cutlass::arch::cpasync_barrier_arrive_noinc(reinterpret_cast<uint64_t*>(&shared.ring.full[stage]));
}

// All copies to the stage go through TMA, or there is none. A lane arrives for its warp.
template <class S>
__forceinline__ __device__ void arrive_without_copies(typename S::Shared& shared, int stage) {
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
  const auto barrier = static_cast<uint32_t>(__cvta_generic_to_shared(&shared.ring.full[stage]));
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 32;" ::"r"(barrier) : "memory");
}

// Called by the consumers of a stage with copies by cp.async: wgmma reads shared memory through the async proxy.
__forceinline__ __device__ void fence_copies() { cutlass::arch::fence_view_async_shared(); }

// Stores kPanels panels of a warp, 16 rows of 64 columns: through TMA if their rows are adjacent, else to rows at any
// place.
template <class T, int kPanels>
class PanelRows {
 public:
  using Stores = PanelStores<T>;
  static constexpr int kBytes = Stores::kBytes, kColumns = Stores::kColumns, kValues = Stores::kValues;

  // Lane i has the number of the result's row for row i of the panels; -1: it is not stored.
  __device__ PanelRows(char* buffers, int number, bool are_adjacent)
      : buffers_(buffers), number_(number), are_adjacent_(are_adjacent) {}

  // Stores columns from `column` on, of which `columns` exist, a multiple of 8. `stride` lies between the rows of `to`,
  // which `map` describes. value(i) is the thread's i-th value, see Fragment.
  template <class Value>
  __forceinline__ __device__ void store(const CUtensorMap& map, T* to, int column, int columns, int stride,
                                        Value&& value) {
    const int lane = threadIdx.x % 32, of_chunk = lane % 8 * 8;
    if (are_adjacent_ && kPanels % 2 == 0)
      cute::tma_store_wait<1>();  // the last store from this buffer has read it
    else
      cute::tma_store_wait<0>();
    __syncwarp();
    auto* const panel = reinterpret_cast<uint16_t*>(buffers_ + next_ * Stores::kBufferBytes);
    Stores::write(panel, lane, value);
    next_ ^= 1;
    if (are_adjacent_) {
      cute::tma_store_fence();
      __syncwarp();
      if (lane == 0) {
        cute::SM90_TMA_STORE_3D::copy(&map, panel, column, number_, 0);
        cute::tma_store_arrive();
      }
      return;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Stores::kRows / 4; ++i) {
      const int row = i * 4 + lane / 8, number = __shfl_sync(0xffffffff, number_, row);
      const uint4 words = *reinterpret_cast<const uint4*>(panel + Stores::Panel::at(row, of_chunk));
      if (number >= 0 && column + of_chunk < columns)
        *reinterpret_cast<uint4*>(to + int64_t(number) * stride + column + of_chunk) = words;
    }
  }

 private:
  char* buffers_;
  int number_, next_ = 0;
  bool are_adjacent_;
};

// A block: two consumer warpgroups run `consume(group, sums, staged memory of the warp)`, the third one `produce`,
// which itself waits for earlier work, by cudaGridDependencySynchronize().
template <class S, uint32_t kProducerRegisters, class Produce, class Consume>
__forceinline__ __device__ void run_warpgroups(typename S::Shared& shared, Produce&& produce, Consume&& consume) {
  constexpr uint32_t kAtStart = 65536 / S::kThreads / 8 * 8;  // registers of each thread
  constexpr uint32_t kConsumerRegisters = kAtStart + (kAtStart - kProducerRegisters) / S::kConsumers;
  const int group = cutlass::canonical_warp_group_idx();
  if (threadIdx.x == 0) {
    shared.ring.init(S::kCluster * S::kConsumers, kProducerArrivals);
    cutlass::arch::fence_barrier_init();
  }
  if constexpr (S::kIsPaired)
    cute::cluster_sync();
  else
    __syncthreads();
  if (group == S::kConsumers) {
    cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
    produce();
    cudaTriggerProgrammaticLaunchCompletion();
  } else {
    cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
    cudaGridDependencySynchronize();
    typename S::Sums sums;
    consume(group, sums, shared.staged + threadIdx.x / 32 * S::kStagedBytes);
    cute::tma_store_wait<0>();
  }
  // A block must not exit while its pair copies into its memory or arrives at its barriers.
  if constexpr (S::kIsPaired) {
    __syncwarp();
    cute::cluster_sync();
  }
}

// One cluster for each multiprocessor or pair of them, or for each work tile.
template <class S, class Call>
Status launch_grouped_sm90(const Context& context, void (*kernel)(Call), int64_t work, const Call& call) {
  const int64_t clusters = std::max(device_attribute(cudaDevAttrMultiProcessorCount) / S::kCluster, 1);
  const Grid grid = {.blocks = std::min(work, clusters) * S::kCluster,
                     .threads = S::kThreads,
                     .shared_bytes = int(sizeof(typename S::Shared)),
                     .cluster = S::kCluster};
  return launch(context, kernel, grid, call);
}

}  // namespace fusedops::cuda
