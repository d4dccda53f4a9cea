// 16-bit grouped products on compute capability 9.x: shared parts of the kernels of grouped_sm90.cuh.
//
// Rows of the groups are at any place and end anywhere, so a producer warpgroup copies them by cp.async, with zeros
// past the end of a group. Matrices of the groups are copied through TMA. The consumers are those of gemm_sm90.cuh.
#pragma once

#include "core/cuda/async_copy.cuh"
#include "ops/experts/grouped_kernels.h"
#include "ops/products/gemm_sm90.cuh"
#include "ops/products/gemm_store_sm90.cuh"

namespace fusedops::cuda {

// Small groups would leave one block of a pair idle.
template <int kWeights>
using GroupedTiles = TileShape<256, Schedule::cooperative, false, kWeights>;

inline constexpr int kProducerWarps = 4;
inline constexpr uint32_t kGroupedProducerRegisters = 56, kGroupedConsumerRegisters = 224;

// Copies rows of a GroupRows to a SwizzledTile [kRows, kColumns]. Called by all threads of the producer warpgroup.
template <class T, int kRows, int kColumns>
class RowCopies {
 public:
  // Finds rows [first, first + kRows) of the groups, of which those from `end` on are zeros.
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
      copy_async<16>(to + sm90::SwizzledTile<kRows, kColumns>::at(row, of_chunk), from + max(number, 0) * rows.stride,
                     number < 0 ? 0 : bytes);
    }
  }

 private:
  static constexpr int kChunks = kColumns / 8, kRowsAtATime = sm90::kWarpgroup / kChunks;
  static_assert(32 % kRowsAtATime == 0 && kRows % 32 == 0);

  int numbers_[kRows / 32];  // of row i * 32 + lane; -1: zeros
};

// Marks stages as full one stage late, when the copies of each thread are complete. wgmma reads shared memory through
// the async proxy, hence the fence.
template <class S>
class FullStages {
 public:
  __device__ explicit FullStages(typename S::Shared& shared) : shared_(shared) {}

  // All copies to the stage have been started.
  __device__ void add(int stage) {
    commit_copies();
    if (last_ >= 0) mark<1>();
    last_ = stage;
  }

  __device__ void finish() {
    if (last_ >= 0) mark<0>();
  }

 private:
  template <int kPending>
  __device__ void mark() {
    wait_for_copies<kPending>();
    cutlass::arch::fence_view_async_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared_.ring.full[last_].arrive();
  }

  typename S::Shared& shared_;
  int last_ = -1;
};

// Stores panels of a warp, 16 rows of 64 columns, to rows at any place.
template <class T>
class PanelRows {
 public:
  using Stores = PanelStores<T>;
  static constexpr int kBytes = Stores::kBufferBytes, kColumns = Stores::kColumns, kValues = Stores::kValues;

  // Lane i has the number of the result's row for row i of the panels; -1: it is not stored.
  __device__ PanelRows(char* buffer, int number) : panel_(reinterpret_cast<uint16_t*>(buffer)), number_(number) {}

  // Stores columns from `column` on, of which `columns` exist, a multiple of 8. `stride` lies between the rows of `to`.
  // value(i) is the thread's i-th value, see Fragment.
  template <class Value>
  __forceinline__ __device__ void store(T* to, int column, int columns, int stride, Value&& value) const {
    const int lane = threadIdx.x % 32, of_chunk = lane % 8 * 8;
    Stores::write(panel_, lane, value);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Stores::kRows / 4; ++i) {
      const int row = i * 4 + lane / 8, number = __shfl_sync(0xffffffff, number_, row);
      const uint4 words = *reinterpret_cast<const uint4*>(panel_ + Stores::Panel::at(row, of_chunk));
      if (number >= 0 && column + of_chunk < columns)
        *reinterpret_cast<uint4*>(to + int64_t(number) * stride + column + of_chunk) = words;
    }
    __syncwarp();
  }

 private:
  uint16_t* panel_;
  int number_;
};

// A block: two consumer warpgroups run `consume(group, sums, staged memory of the warp)`, the third one `produce`.
template <class S, class Produce, class Consume>
__forceinline__ __device__ void run_warpgroups(typename S::Shared& shared, Produce&& produce, Consume&& consume) {
  const int group = cutlass::canonical_warp_group_idx();
  if (threadIdx.x == 0) {
    shared.ring.init(S::kConsumers, kProducerWarps);
    cutlass::arch::fence_barrier_init();
  }
  cudaGridDependencySynchronize();
  __syncthreads();
  if (group == S::kConsumers) {
    cutlass::arch::warpgroup_reg_dealloc<kGroupedProducerRegisters>();
    produce();
    cudaTriggerProgrammaticLaunchCompletion();
  } else {
    cutlass::arch::warpgroup_reg_alloc<kGroupedConsumerRegisters>();
    typename S::Sums sums;
    consume(group, sums, shared.staged + threadIdx.x / 32 * S::kStagedBytes);
  }
}

// One block for each multiprocessor, or for each work tile.
template <class S, class Call>
Status launch_grouped_sm90(const Context& context, void (*kernel)(Call), int64_t work, const Call& call) {
  const int64_t blocks = std::min<int64_t>(work, device_attribute(cudaDevAttrMultiProcessorCount));
  return launch(context, kernel, Grid{blocks, S::kThreads, int(sizeof(typename S::Shared))}, call);
}

}  // namespace fusedops::cuda
