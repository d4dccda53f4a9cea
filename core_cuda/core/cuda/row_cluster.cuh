// Rows too long for the registers of a block are divided equally among a cluster of blocks (CUDA Programming Guide,
// "Thread Block Clusters"). If a cluster cannot hold the row either, its blocks take tiles in turn and read them again
// in each pass, mostly from L2. Without clusters, on GPUs before 9.0 and in small slices of later ones, one block
// processes the row.
//
// Memory would be idle while the blocks of a cluster synchronize. With many rows, each resident cluster therefore loops
// over rows, and prefetches the next row before it reduces the current one. Norms have more, smaller blocks instead.
#pragma once

#include "core/common/rows.h"
#include "core/cuda/prefetch.cuh"
#include "core/cuda/rows.cuh"

namespace fusedops::cuda {

// A block of at most `most` threads if it holds the row; else, if the GPU has clusters, a cluster with equal parts of a
// row that it holds. Parts are multiples of `unit` elements, which neighbouring threads of one block hold.
template <class T, int kPacks, class Kernel>
RowGroups block_or_cluster(int64_t size, int most, Kernel kernel, int unit = kPackSize<T>) {
  const int fewest = unit / kPackSize<T>;
  const RowGroups block = row_groups<T, kPacks>(size, kMinBlockThreads, most, fewest);
  if (block.holds(size)) return block;
  RowGroups groups = row_groups<T, kPacks>(size, kMinBlockThreads, kRowThreads);
  groups.cluster = cluster_for(kernel, size, groups.tile);
  const int64_t of_all = int64_t(groups.cluster) * unit;
  if (groups.holds(size)) groups.per_block = static_cast<int>((size + of_all - 1) / of_all * unit);
  return groups;
}

// True if the blocks take more than one wave at two blocks per multiprocessor. More of the smaller blocks fit per SM;
// the variants for many and for few rows are then equally fast.
inline bool is_multi_wave(int64_t blocks) { return blocks > 2 * device_attribute(cudaDevAttrMultiProcessorCount); }

// The grid of a kernel that loops over rows if there are many (RowCluster::each_row), with shared memory for a block's
// next row. Prefetched rows must be aligned, since cp.async moves 16 bytes.
inline Grid cluster_grid(const RowGroups& groups, int64_t rows, bool aligned, int next_row_bytes) {
  Grid grid = groups.grid(rows);
  grid.resident = aligned && is_multi_wave(grid.blocks);
  if (grid.resident) grid.shared_bytes = next_row_bytes;
  return grid;
}

// The next row of a block, with kPacks packs per thread.
template <class T, int kPacks>
using NextRow = Prefetch<T, kRowThreads, 1, kPacks>;

// A kernel constructs this first.
class RowCluster {
 public:
  __device__ explicit RowCluster(const RowGroups& groups) : groups_(groups) {
#if __CUDA_ARCH__ >= 900
    if (groups.cluster == 1) return;
    if (threadIdx.x == 0) {
      for (int buffer = 0; buffer < 2; ++buffer)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(arrivals(buffer)), "r"(blockDim.x / 32)
                     : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  }

  // The position of a thread in a row that the cluster holds.
  template <class T>
  __device__ RowThread<kRowThreads> thread() const {
    return RowThread<kRowThreads>(groups_, groups_.cluster_index(), static_cast<int>(groups_.first() / kPackSize<T>));
  }

  // Loops over the rows of this cluster, beginning with that of `me`. The first row is loaded; each later one is
  // prefetched while its predecessor is processed: row.load(), row.prefetch(index), row.wait(). finish() processes a
  // row. It calls gather(), which synchronizes the blocks, so shared memory can be reused for each row.
  template <bool kAligned, class Row, class Finish>
  __device__ void each_row(RowThread<kRowThreads>& me, int64_t rows, Row& row, Finish finish) {
    const int64_t stride = groups_.cluster_count();
    row.load();
    for (bool has_next = true; has_next;) {
      const int64_t next = me.row + stride;
      has_next = kAligned && next < rows;  // unaligned rows have a cluster each: see cluster_grid()
      if (has_next) row.prefetch(next);
      finish();
      if (!has_next) break;
      me.row = next;
      row.wait();
    }
  }

  // The values of all blocks of the cluster, by rank. A value is the same in all threads of its block, which reduce it
  // with a __syncthreads(). Every thread must call this equally often, at least once; it is a barrier of the block.
  //
  // A barrier of the cluster waits for all stores of a thread, and empties the L1 cache. Without it, each block waits
  // for the values that the others write into its shared memory. No block exits before it has received them all.
  //
  // A buffer and its mbarrier are used again two gathers later. By then every thread has read the buffer: a block sends
  // its next value after the __syncthreads() of a reduction, and no block passes the next gather without that value.
  template <class V>
  __device__ const V* gather(const V& value, V (&values)[2][kMaxCluster]) {
    const int buffer = gathers_ & 1;  // double buffering: other blocks may still read the last values
    V(&gathered)[kMaxCluster] = values[buffer];
#if __CUDA_ARCH__ >= 900
    static_assert(sizeof(V) % sizeof(uint32_t) == 0);
    if (gathers_ == 0)  // every block must have started before its shared memory is written
      asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    const uint32_t arrived = arrivals(buffer);
    if (threadIdx.x < groups_.cluster) {
      const uint32_t there = of_block(threadIdx.x, arrived);
      const uint32_t to = of_block(threadIdx.x, shared_address(gathered + groups_.rank()));
      const auto* words = reinterpret_cast<const uint32_t*>(&value);
#pragma unroll
      for (int i = 0; i < int(sizeof(V) / sizeof(uint32_t)); ++i)
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to + 4 * i),
                     "r"(words[i]), "r"(there)
                     : "memory");
    }
    __syncwarp();
    wait_for_values(arrived, sizeof(V));
#endif
    ++gathers_;
    return gathered;
  }

  template <class V, class Combine>
  __device__ V combined(const V& value, V (&values)[2][kMaxCluster], Combine combine) {
    if (groups_.cluster == 1) return value;
    const V* of_blocks = gather(value, values);
    V all = of_blocks[0];
    for (int block = 1; block < groups_.cluster; ++block) all = combine(all, of_blocks[block]);
    return all;
  }

  template <class V>
  __device__ V sum(const V& value, V (&values)[2][kMaxCluster]) {
    return combined(value, values, [](const V& a, const V& b) { return a + b; });
  }

 private:
  static __device__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
  }

  // The address, in shared memory, of the barrier for the values in a buffer. Each warp arrives, and each value.
  static __device__ uint32_t arrivals(int buffer) {
    __shared__ uint64_t barriers[2];
    return shared_address(barriers + buffer);
  }

  // The same place in the shared memory of another block.
  static __device__ uint32_t of_block(uint32_t rank, uint32_t address) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
  }

  // The values of all blocks, of `bytes` each, complete the phase, and so does one thread of each warp of this block.
  __device__ void wait_for_values(uint32_t arrived, int bytes) const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(arrived), "r"(groups_.cluster * bytes)
                   : "memory");
    else if (threadIdx.x % 32 == 0)
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(arrived) : "memory");
    uint32_t complete;
    do {
      asm volatile(
          "{\n.reg .pred complete;\nmbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
          "selp.u32 %0, 1, 0, complete;\n}"
          : "=r"(complete)
          : "r"(arrived), "r"(gathers_ >> 1 & 1)
          : "memory");
    } while (!complete);
#endif
  }

  const RowGroups& groups_;
  int gathers_ = 0;
};

}  // namespace fusedops::cuda
