// Rows on the GPU: how many threads take a row, and sums (or maxima) over them.
//
// The order of every sum over a row follows from the length of the row alone, never from the number of rows: a row has
// the same bits in any batch.
#pragma once

#include <algorithm>
#include <bit>

#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rounding.cuh"

namespace fusedops::cuda {

inline constexpr int kLeastBlockThreads = 128;
inline constexpr int kMostRowThreads = 1024;  // of a block
inline constexpr int kRowThreads = 512;       // two blocks of 64 registers a thread share a multiprocessor

// How rows are distributed over threads. Each thread holds kPacks packs of its row in registers; a longer row is walked
// in several tiles (row_cluster.cuh).
struct RowGroups {
  int threads;           // per row: a power of two
  int shift;             // its logarithm
  int block_threads;     // a multiple of threads
  int rows_per_block;    // block_threads / threads
  int tile;              // elements of a row that its threads hold at once, in one block
  int cluster = 1;       // blocks that share a row: a power of two
  int per_block = tile;  // elements that each of them takes at a time: all of its own, if together they hold the row

  int64_t blocks(int64_t rows) const { return (rows + rows_per_block - 1) / rows_per_block * cluster; }
  Grid grid(int64_t rows) const { return {blocks(rows), block_threads, 0, cluster}; }

  // Whether the row is in registers as a whole.
  __host__ __device__ bool holds(int64_t size) const { return size <= static_cast<int64_t>(cluster) * tile; }

  // Calls body(tile) with the first element of each tile that this block takes: only one, if the row is held.
  template <class Body>
  __device__ void each_tile(int64_t size, Body&& body) const {
    const int64_t stride = static_cast<int64_t>(cluster) * per_block;
    for (int64_t at = first(); at < size; at += stride) body(at);
  }

  // This block takes the columns [first, end) if the row is held.
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

// The fewest threads that hold a row of `size` elements, kPacks packs each: many bytes in flight per thread are what
// reaches memory speed. Blocks have at least `least` threads, and rows from `fewest` to `most`.
template <class T, int kPacks>
RowGroups row_groups(int64_t size, int least = kLeastBlockThreads, int most = kMostRowThreads, int fewest = 1) {
  const int64_t packs = (size + kPackSize<T> - 1) / kPackSize<T>;
  const int64_t wanted = std::clamp<int64_t>((packs + kPacks - 1) / kPacks, fewest, most);
  const int threads = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(wanted)));
  return groups_of(threads, least, threads * kPacks * kPackSize<T>);
}

// The same with half the packs in twice the threads, for few rows, whose time is latency. With RowThread::half(), and
// with a sum for each half of a thread where there are whole ones, sums have the same bits.
inline RowGroups with_half_the_packs(const RowGroups& groups) {
  return groups_of(2 * groups.threads, kLeastBlockThreads, groups.tile);
}

// A thread's place: which row, and which of the row's threads. kThreads: how many there are, if the compiler is to
// know, which saves most of the arithmetic on addresses; else 0.
template <int kThreads = 0>
struct RowThread {
  int64_t row;
  int index;    // its first pack: in [0, threads), plus the packs that the blocks before this one take
  int threads;  // of the row, in this block

  __device__ explicit RowThread(const RowGroups& groups, int64_t block = blockIdx.x, int packs_before = 0)
      : row(block * groups.rows_per_block + (threadIdx.x >> groups.shift)),
        index((threadIdx.x & (groups.threads - 1)) + packs_before),
        threads(kThreads ? kThreads : groups.threads) {}

  // Of two threads side by side, each with half the packs of one: that one's pack p is pack p / 2 of thread p % 2.
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

// Several sums at once, which share their synchronization.
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

// Combines the values of as many neighbouring threads, a power of two (kThreads, if the compiler knows it), in the same
// order everywhere; all of them get the result. `combine` is commutative. Every thread of the block must call this.
// `scratch` has room for 32 values; between two calls with the same scratch there must be a __syncthreads().
template <int kThreads, class V, class Combine>
__device__ V among_threads(int threads, V value, V* scratch, Combine combine) {
  if constexpr (kThreads > 0) threads = kThreads;
  if (threads < 32) {
    for (int offset = 1; offset < threads; offset *= 2) value = combine(value, exchanged(value, offset));
    return value;
  }
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) value = combine(value, exchanged(value, offset));
  if (threads == 32) return value;
  // Several warps hold the row: the first lane of each leaves its value, and every warp combines them all.
  const int warps = threads / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = scratch[(warp & -warps) + (lane & (warps - 1))];
  for (int offset = 1; offset < warps; offset *= 2) value = combine(value, exchanged(value, offset));
  return value;
}

// The same of a row's threads.
template <int kThreads, class V, class Combine>
__device__ V row_reduce(const RowThread<kThreads>& me, V value, V* scratch, Combine combine) {
  return among_threads<kThreads>(me.threads, value, scratch, combine);
}

}  // namespace fusedops::cuda
