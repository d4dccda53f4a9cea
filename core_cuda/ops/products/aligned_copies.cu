// Limit: memory bandwidth. Each element is read and written once; both copies are one launch.
#include "core/common/ceil_div.h"
#include "core/cuda/async_copy.cuh"
#include "core/cuda/divisor.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "ops/products/aligned_copies.h"

namespace fusedops::cuda {
namespace {

using T = bf16;  // any type of 16 bits
constexpr int kPack = kPackSize<T>;

struct CopyCall {
  const T* from;
  int64_t stride, batch_stride;
  T* to;
  int64_t to_stride, rows, columns;
  bool transposed;
  int64_t count, blocks;  // packs, blocks
  Divisor inner, outer;   // divide the index of a pack, or of a tile
};

// A matrix whose lines are its rows: a thread copies two packs.
constexpr int kPacksOfThread = 2, kPacksOfBlock = kThreads * kPacksOfThread;

__device__ void copy_packs(const CopyCall& call, int64_t block) {
  UnalignedPack<T> packs[kPacksOfThread];
  T* to[kPacksOfThread];
#pragma unroll
  for (int i = 0; i < kPacksOfThread; ++i) {
    const int64_t number = block * kPacksOfBlock + i * kThreads + threadIdx.x;
    const auto [line, pack] = call.inner.divide(number);
    const auto [batch, row] = call.outer.divide(line);
    const int64_t column = pack * kPack;
    // Elements readable behind the row: the next row, or the gap between both.
    const int64_t exist = (call.rows - 1 - row) * call.stride + call.columns - column;
    to[i] = number < call.count ? call.to + line * call.to_stride + column : nullptr;
    packs[i].begin(call.from + batch * call.batch_stride + row * call.stride + column, to[i] ? exist : 0);
  }
#pragma unroll
  for (int i = 0; i < kPacksOfThread; ++i)
    if (to[i]) *reinterpret_cast<Pack<T>*>(to[i]) = packs[i].end();
}

// A matrix whose lines are its columns: a block transposes a tile through shared memory. Asynchronous copies load the
// aligned 16-byte words that contain the tile's lines.
constexpr int kTile = 64, kWords = kTile / kPack + 1;
constexpr int kPitch = kTile + 2 * kPack;  // elements

// Offset of a line in shared memory. A warp reads lines that are 8 apart at the same time: adjacent here, they are in
// different banks.
__device__ int place_of(int line) { return (line % kPack * (kTile / kPack) + line / kPack) * kPitch; }

__device__ void transpose_tile(const CopyCall& call, int64_t block, T* tile) {
  const auto [others, tile_of_rows] = call.inner.divide(block);
  const auto [batch, tile_of_columns] = call.outer.divide(others);
  const int64_t first_row = tile_of_rows * kTile, first_column = tile_of_columns * kTile;
  const T* const matrix = call.from + batch * call.batch_stride;
  const auto end = reinterpret_cast<int64_t>(matrix + (call.columns - 1) * call.stride + call.rows);
  const auto address_of = [&](int line) {
    return reinterpret_cast<int64_t>(matrix + (first_column + line) * call.stride + first_row);
  };
  constexpr int kBytes = sizeof(Pack<T>);
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kWords; i += kThreads) {
    const int line = i / kWords, word = i % kWords;
    const int64_t from = address_of(line) / kBytes * kBytes + word * kBytes;
    const int64_t left = first_column + line < call.columns ? end - from : 0;
    T* const to = tile + place_of(line) + word * kPack;
    // The matrix may end within a word. memcheck reports a copy of fewer bytes as a read of all 16.
    if (left > 0 && left < kBytes) {
#pragma unroll 1
      for (int e = 0; e < left / int(sizeof(T)); ++e) to[e] = reinterpret_cast<const T*>(from)[e];
    } else {
      copy_async<kBytes>(to, reinterpret_cast<const void*>(from), left > 0 ? kBytes : 0);
    }
  }
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();

  // A thread has 8 columns of two rows; four neighbouring threads write 64 bytes of a row.
  constexpr int kSide = 4, kPairs = kTile / 2;
  static_assert(kPairs * kTile / kPack == kThreads);
  const int thread = static_cast<int>(threadIdx.x), pair = thread / kSide % kPairs;
  const int first_line = (thread / (kSide * kPairs) * kSide + thread % kSide) * kPack;
  Pack<T> rows[2];
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const int line = first_line + i;
    const T* const from = tile + place_of(line) + address_of(line) % kBytes / int(sizeof(T)) + pair * 2;
    rows[0].values[i] = from[0];
    rows[1].values[i] = from[1];
  }
  const int64_t column = first_column + first_line;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = first_row + pair * 2 + half;
    if (row < call.rows && column < call.columns)
      *reinterpret_cast<Pack<T>*>(call.to + (batch * call.rows + row) * call.to_stride + column) = rows[half];
  }
}

__global__ void __launch_bounds__(kThreads)
    copy_lines_kernel(const __grid_constant__ CopyCall first, const __grid_constant__ CopyCall second) {
  begin_kernel();
  __shared__ __align__(16) T tile[kTile * kPitch];
  const bool is_first = blockIdx.x < first.blocks;
  const CopyCall& call = is_first ? first : second;
  const int64_t block = is_first ? blockIdx.x : blockIdx.x - first.blocks;
  if (call.transposed)
    transpose_tile(call, block, tile);
  else
    copy_packs(call, block);
}

CopyCall call_of(const LineCopy& copy) {
  CopyCall call = {static_cast<const T*>(copy.from.data),
                   copy.from.stride,
                   copy.from.batch_stride,
                   static_cast<T*>(copy.to),
                   copy.to_stride,
                   copy.rows,
                   copy.columns,
                   copy.from.transposed,
                   0,
                   0,
                   Divisor(1),
                   Divisor(1)};
  if (copy.rows == 0) return call;
  if (call.transposed) {
    const int64_t tiles_of_rows = ceil_div(copy.rows, kTile), tiles_of_columns = ceil_div(copy.columns, kTile);
    call.inner = Divisor(tiles_of_rows), call.outer = Divisor(tiles_of_columns);
    call.blocks = copy.batch * tiles_of_rows * tiles_of_columns;
  } else {
    const int64_t packs = ceil_div(copy.columns, kPack);
    call.inner = Divisor(packs), call.outer = Divisor(copy.rows);
    call.count = copy.batch * copy.rows * packs;
    call.blocks = ceil_div(call.count, kPacksOfBlock);
  }
  return call;
}

}  // namespace

Status copy_lines(const LineCopy& first, const LineCopy& second, const Context& context) {
  const CopyCall one = call_of(first), other = call_of(second);
  return launch(context, copy_lines_kernel, one.blocks + other.blocks, kThreads, one, other);
}

}  // namespace fusedops::cuda
