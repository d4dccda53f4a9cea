// Rows on the GPU: how many threads take a row, and sums (or maxima) over them.
//
// The order of every sum over a row follows from the length of the row alone, never from the number of rows: a row has
// the same bits in any batch. So does the number of threads, but where row_sum() makes up for it.
#pragma once

#include <algorithm>
#include <bit>

#include "core/launch.cuh"
#include "core/pack.cuh"
#include "core/rounding.cuh"

namespace fusedops::cuda {

inline constexpr int kMostRowThreads = 1024;  // of a block

// How rows are dealt out to threads. Each thread holds kPacks packs of its row in registers; a longer row is walked in
// several chunks (core/row_cluster.cuh).
struct RowGroups {
  int threads;         // per row: a power of two
  int shift;           // its logarithm
  int block_threads;   // a multiple of threads
  int rows_per_block;  // block_threads / threads
  int chunk;           // elements that the threads of a row hold at once, in one block
  int cluster = 1;     // blocks that share a row: a power of two

  int64_t blocks(int64_t rows) const { return (rows + rows_per_block - 1) / rows_per_block * cluster; }
  Grid grid(int64_t rows) const { return {blocks(rows), block_threads, 0, cluster}; }

  // Whether the row is in registers as a whole.
  __host__ __device__ bool holds(int64_t size) const { return size <= static_cast<int64_t>(cluster) * chunk; }

  // Calls body(chunk) for the first element of each chunk that is this block's.
  template <class Body>
  __device__ void each_chunk(int64_t size, Body&& body) const {
    const int64_t step = static_cast<int64_t>(cluster) * chunk;
    for (int64_t at = static_cast<int64_t>(rank()) * chunk; at < size; at += step) body(at);
  }

  // Of this block in its cluster, and of the cluster.
  __device__ int rank() const { return blockIdx.x & (cluster - 1); }
  __device__ int64_t cluster_index() const { return blockIdx.x >> (__ffs(cluster) - 1); }
};

// The fewest threads that hold a row of `size` elements, kPacks packs each: many bytes in flight per thread are what
// reaches memory speed. Blocks have at least `least` threads, and rows at most `most`.
template <class T, int kPacks>
RowGroups row_groups(int64_t size, int least = 128, int most = kMostRowThreads) {
  const int64_t packs = (size + kPackSize<T> - 1) / kPackSize<T>;
  const int64_t wanted = std::clamp<int64_t>((packs + kPacks - 1) / kPacks, 1, most);
  const int threads = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(wanted)));
  const int block = std::max(threads, least);
  return {threads, std::countr_zero(static_cast<unsigned>(threads)), block, block / threads,
          threads * kPacks * kPackSize<T>};
}

// A thread's place: which row, and which of the row's threads. kThreads: how many there are, if the compiler is to
// know, which spares it most of the arithmetic on addresses; else 0.
template <int kThreads = 0>
struct RowThread {
  int64_t row;
  int lane;     // in [0, threads)
  int threads;  // of the row

  __device__ explicit RowThread(const RowGroups& groups, int64_t block = blockIdx.x)
      : row(block * groups.rows_per_block + (threadIdx.x >> groups.shift)),
        lane(threadIdx.x & (groups.threads - 1)),
        threads(kThreads ? kThreads : groups.threads) {}

  // The first element of this thread's pack p in a chunk.
  template <class T>
  __device__ int at(int p) const {
    return (p * (kThreads ? kThreads : threads) + lane) * kPackSize<T>;
  }
  template <class T>
  __device__ int64_t at(int64_t chunk_start, int p) const {
    return chunk_start + at<T>(p);
  }
};

// Several sums at once, which share their synchronization.
template <class A, int kCount>
struct Sums {
  A values[kCount] = {};

  __device__ A& operator[](int i) { return values[i]; }

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

// Combines the values of a row's threads, in the same order for every row; all of them get the result. `combine` is
// commutative. Every thread of the block must come here. `scratch` has room for 32 values; between two calls with the
// same scratch there must be a __syncthreads().
template <int kThreads, class V, class Combine>
__device__ V row_reduce(const RowThread<kThreads>& me, V value, V* scratch, Combine combine) {
  const int threads = kThreads ? kThreads : me.threads;
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

// The sum over a row's threads, for kernels that hold the same row in fewer threads if there are many rows: a thread
// with two sums stands for two threads, `threads` apart. The bits are those of twice the threads with one sum each.
// `scratch` has room for 32 values.
template <int kThreads, class A, int kSums>
__device__ A row_sum(const RowThread<kThreads>& me, Sums<A, kSums> sums, A* scratch) {
  const int threads = kThreads ? kThreads : me.threads;
  for (int offset = 1; offset < 32; offset *= 2)
    if (offset < threads) sums = sums + exchanged(sums, offset);
  if (threads <= 32) return kSums == 1 ? sums[0] : sums[0] + sums[kSums - 1];
  const int warps = threads / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = (warp & -warps) * kSums;
#pragma unroll
  for (int k = 0; k < kSums; ++k)
    if (lane == 0) scratch[row + k * warps + (warp & (warps - 1))] = sums[k];
  __syncthreads();
  A sum = scratch[row + (lane & (warps * kSums - 1))];
  for (int offset = 1; offset < warps * kSums; offset *= 2) sum += exchanged(sum, offset);
  return sum;
}

}  // namespace fusedops::cuda
