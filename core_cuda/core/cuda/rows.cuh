// Distribution of rows over GPU threads, and reductions along rows. The order of a reduction depends on the length of
// the row alone, never on the number of rows: row operators are batch-invariant.
#pragma once

#include <algorithm>
#include <bit>

#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rounding.cuh"

namespace fusedops::cuda {

inline constexpr int kMinBlockThreads = 128;
inline constexpr int kMaxRowThreads = 1024;  // per block
inline constexpr int kRowThreads = 512;      // two blocks per multiprocessor at 64 registers a thread

// The distribution of rows over threads. Each thread holds kPacks packs of its row in registers; a longer row is
// processed in several tiles (row_cluster.cuh).
struct RowGroups {
  int threads;           // per row: a power of two
  int shift;             // its logarithm
  int block_threads;     // a multiple of threads
  int rows_per_block;    // block_threads / threads
  int tile;              // elements of a row that the threads of one block hold
  int cluster = 1;       // blocks that share a row: a power of two
  int per_block = tile;  // elements per block at a time: its whole part, if the cluster holds the row

  int64_t blocks(int64_t rows) const { return (rows + rows_per_block - 1) / rows_per_block * cluster; }
  Grid grid(int64_t rows) const { return {blocks(rows), block_threads, 0, cluster}; }

  // True if registers hold the whole row.
  __host__ __device__ bool holds(int64_t size) const { return size <= static_cast<int64_t>(cluster) * tile; }

  // Calls body(tile) with the first element of each tile of this block: only one, if the row is held.
  template <class Body>
  __device__ void each_tile(int64_t size, Body&& body) const {
    const int64_t stride = static_cast<int64_t>(cluster) * per_block;
    for (int64_t at = first(); at < size; at += stride) body(at);
  }

  // If the row is held, this block processes the columns [first, end).
  __device__ int64_t first() const { return static_cast<int64_t>(rank()) * per_block; }
  __device__ int64_t end(int64_t size) const {
    return holds(size) && cluster > 1 ? min(size, first() + per_block) : size;
  }

  // The index of this block in its cluster, the index of the cluster, and the number of clusters.
  __device__ int rank() const { return blockIdx.x & (cluster - 1); }
  __device__ int64_t cluster_index() const { return blockIdx.x >> (__ffs(cluster) - 1); }
  __device__ int64_t cluster_count() const { return gridDim.x >> (__ffs(cluster) - 1); }
};

inline RowGroups groups_of(int threads, int least, int tile) {
  const int block = std::max(threads, least);
  return {threads, std::countr_zero(static_cast<unsigned>(threads)), block, block / threads, tile};
}

// The fewest threads that hold a row of `size` elements with kPacks packs each: many bytes in flight per thread reach
// memory bandwidth. Blocks have at least `least` threads, rows from `fewest` to `most`.
template <class T, int kPacks>
RowGroups row_groups(int64_t size, int least = kMinBlockThreads, int most = kMaxRowThreads, int fewest = 1) {
  const int64_t packs = (size + kPackSize<T> - 1) / kPackSize<T>;
  const int64_t wanted = std::clamp<int64_t>((packs + kPacks - 1) / kPacks, fewest, most);
  const int threads = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(wanted)));
  return groups_of(threads, least, threads * kPacks * kPackSize<T>);
}

// Half the packs in twice the threads, for few rows, which are bound by latency. The sums have the same bits with
// RowThread::half() and one partial sum per half thread where threads are whole.
inline RowGroups with_half_the_packs(const RowGroups& groups) {
  return groups_of(2 * groups.threads, kMinBlockThreads, groups.tile);
}

// The position of a thread: its row, and its index among the row's threads. kThreads: the number of threads per row if
// it is known at compile time, which saves most address arithmetic; else 0.
template <int kThreads = 0>
struct RowThread {
  int64_t row;
  int index;    // of its first pack: in [0, threads), plus the packs of the preceding blocks
  int threads;  // of the row, in this block

  __device__ explicit RowThread(const RowGroups& groups, int64_t block = blockIdx.x, int packs_before = 0)
      : row(block * groups.rows_per_block + (threadIdx.x >> groups.shift)),
        index((threadIdx.x & (groups.threads - 1)) + packs_before),
        threads(kThreads ? kThreads : groups.threads) {}

  // For two neighbouring threads with half the packs of one: pack p of that one is pack p / 2 of thread p % 2.
  static __device__ RowThread half(const RowGroups& groups) {
    RowThread me(groups);
    me.index = me.index % 2 * (me.threads / 2) + me.index / 2;
    return me;
  }

  // The first element of this thread's pack p in a tile.
  template <class T>
  __device__ int at(int p) const {
    return (p * (kThreads ? kThreads : threads) + index) * kPackSize<T>;
  }
  template <class T>
  __device__ int64_t at(int64_t tile_start, int p) const {
    return tile_start + at<T>(p);
  }
};

// Several sums that share their synchronization.
template <class A, int kCount>
struct Sums {
  A values[kCount] = {};

  __device__ A& operator[](int i) { return values[i]; }
  __device__ const A& operator[](int i) const { return values[i]; }

  __device__ friend Sums operator+(Sums a, const Sums& b) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) a.values[i] += b.values[i];
    return a;
  }
};

// The value of another lane of the warp.
template <class V>
__device__ V exchanged(V value, int offset) {
  return __shfl_xor_sync(0xffffffff, value, offset);
}

template <class A, int kCount>
__device__ Sums<A, kCount> exchanged(Sums<A, kCount> sums, int offset) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums.values[i] = exchanged(sums.values[i], offset);
  return sums;
}

// Reduces the values of `threads` neighbouring threads, a power of two (kThreads, if known at compile time), in a fixed
// order; all of them get the result. `combine` is commutative. Every thread of the block must call this. `scratch` has
// room for 32 values. Two calls with the same scratch need a __syncthreads() in between.
template <int kThreads, class V, class Combine>
__device__ V reduce_threads(int threads, V value, V* scratch, Combine combine) {
  if constexpr (kThreads > 0) threads = kThreads;
  if (threads < 32) {
    for (int offset = 1; offset < threads; offset *= 2) value = combine(value, exchanged(value, offset));
    return value;
  }
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) value = combine(value, exchanged(value, offset));
  if (threads == 32) return value;
  // If several warps hold the row, the first lane of each stores its value, and every warp reduces them all.
  const int warps = threads / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = scratch[(warp & -warps) + (lane & (warps - 1))];
  for (int offset = 1; offset < warps; offset *= 2) value = combine(value, exchanged(value, offset));
  return value;
}

// reduce_threads() over twice the kThreads threads of the block, two warps or more: values[i] is that of thread
// threadIdx.x + i * kThreads.
template <int kThreads, class A, class Combine>
__device__ A reduce_two_places(Sums<A, 2> values, A* scratch, Combine combine) {
  constexpr int kWarps = kThreads / 32;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int place = 0; place < 2; ++place) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2)
      values[place] = combine(values[place], exchanged(values[place], offset));
    if (lane == 0) scratch[place * kWarps + warp] = values[place];
  }
  __syncthreads();
  A value = scratch[lane % (2 * kWarps)];
#pragma unroll
  for (int offset = 1; offset < 2 * kWarps; offset *= 2) value = combine(value, exchanged(value, offset));
  return value;
}

// reduce_threads() over a row's threads.
template <int kThreads, class V, class Combine>
__device__ V row_reduce(const RowThread<kThreads>& me, V value, V* scratch, Combine combine) {
  return reduce_threads<kThreads>(me.threads, value, scratch, combine);
}

}  // namespace fusedops::cuda
