// Multistage products of any shape and alignment on tensor cores of compute capability 8.0 and later.
//
// Each block computes one tile of c. It copies rows of op(a) and columns of op(b), kK of k at a time, into a ring of
// kStages stages in shared memory. It accumulates in registers in the order of k and writes each element of c once. A
// matrix is read in its own layout: its lines of unit stride run along k, or along m (n).
//
// Limit: the tensor cores, if 16-byte copies keep the ring filled; load instructions, one per element, if lines of
// 16-bit elements are misaligned.
//
// `Mma` is the warp-level product: core/cuda/mma16.cuh, core/cuda/mma64.cuh.
#pragma once

#include <algorithm>

#include "ops/products/epilogue.cuh"
#include "ops/products/matmul_kernels.h"
#include "ops/products/matmul_tile_loader.cuh"

namespace fusedops::cuda {

// kBlocks: blocks per multiprocessor, which limits the registers. kReadsAhead: a warp loads the fragments of the next
// k-block before it multiplies the current ones. This takes twice the registers for fragments, but the tensor cores
// never wait for shared memory, not even after a barrier.
template <int kM_, int kN_, int kK_, int kWarpM_, int kWarpN_, int kStages_, int kBlocks_, bool kReadsAhead_ = false>
struct BlockTile {
  static constexpr int kM = kM_, kN = kN_, kK = kK_;        // tile of a block
  static constexpr int kWarpM = kWarpM_, kWarpN = kWarpN_;  // tile of a warp
  static constexpr int kStages = kStages_, kBlocks = kBlocks_;
  static constexpr bool kReadsAhead = kReadsAhead_;
  static constexpr int kThreads = 32 * (kM / kWarpM) * (kN / kWarpN);
};

template <class T>
struct Operand {
  const T* data;
  int64_t stride, batch_stride;
};

// `Out`: the type of c, which is T or the type of the sums.
template <class T, class Out>
struct MultistageCall {
  int64_t first;  // tile of the first block
  int64_t tiles_m, tiles_n;
  int64_t m, n, k;
  Operand<T> a, b;
  Out* c;
  int64_t c_stride;
  bool store_pairs;  // stores two adjacent elements in one access
  bool adds;
  ElementEpilogue<T> epilogue;
};

// Tile of op(a), or of op(b) transposed: kRows rows of kK elements of k.
template <class Mma, int kRows, int kK, int kThreads, int kBytes, bool kAlongK>
struct OperandTile {
  using T = typename Mma::Element;
  static constexpr int kLines = kAlongK ? kRows : kK;
  static constexpr int kWidth = kAlongK ? kK : kRows;
  static constexpr int kPitch = kWidth + Mma::kPad;  // the pad keeps a warp's reads in different banks
  static constexpr int kSize = kLines * kPitch;

  TileLoader<T, kLines, kWidth, kPitch, kThreads, kBytes> loader;
  const T* data;
  int64_t stride;
  int rows;  // rows of the tile within the matrix

  __device__ OperandTile(const Operand<T>& operand, int64_t batch, int64_t row, int64_t count)
      : data(operand.data + batch * operand.batch_stride + row * (kAlongK ? operand.stride : 1)),
        stride(operand.stride),
        rows(static_cast<int>(min(count - row, int64_t(kRows)))) {}

  __device__ void fetch(T* to, int64_t at_k, int64_t k) {
    const int depth = static_cast<int>(max(min(k - at_k, int64_t(kK)), int64_t(0)));
    loader.fetch(to, data + at_k * (kAlongK ? 1 : stride), stride, kAlongK ? rows : depth, kAlongK ? depth : rows);
  }

  // The position of an element in shared memory.
  static __device__ constexpr int at(int row, int k) { return kAlongK ? row * kPitch + k : k * kPitch + row; }
};

template <class Mma, class Tile, int kBytes, bool kAAlongK, bool kBAlongK>
struct Multistage {
  using T = typename Mma::Element;
  using A = OperandTile<Mma, Tile::kM, Tile::kK, Tile::kThreads, kBytes, kAAlongK>;
  using B = OperandTile<Mma, Tile::kN, Tile::kK, Tile::kThreads, kBytes, kBAlongK>;
  static constexpr int kStageSize = A::kSize + B::kSize;
  static constexpr int kSharedBytes = Tile::kStages * kStageSize * sizeof(T);
};

// Sums of a tile in shared memory for an epilogue, so that the code of every activation exists once and not for each
// sum of a thread.
template <class Mma, class Tile>
struct SumTile {
  using A = compute_t<typename Mma::Element>;
  static constexpr int kPitch = Tile::kN + 2;  // rows eight apart in different banks
  static constexpr int kSharedBytes = Tile::kM * kPitch * sizeof(A);

  A* data;

  __device__ void store(int row, int column, A first, A second) const {
    data[row * kPitch + column] = first;
    data[row * kPitch + column + 1] = second;
  }

  template <class T>
  __device__ void finish(const MultistageCall<T, T>& call, int64_t row0, int64_t column0) const {
    for (int i = threadIdx.x; i < Tile::kM * Tile::kN; i += Tile::kThreads) {
      const int64_t row = row0 + i / Tile::kN, column = column0 + i % Tile::kN;
      if (row >= call.m || column >= call.n) continue;
      const int64_t at = row * call.c_stride + column;
      const A sum = data[i / Tile::kN * kPitch + i % Tile::kN];
      call.c[at] = from_compute<T>(call.epilogue.finish(sum, at, column));
    }
  }
};

// Rasterization: neighbouring blocks take tiles from a band of 8 rows of tiles, so that they share reads in L2.
struct TilePosition {
  int64_t batch, m, n;

  __device__ TilePosition(int64_t tile, int64_t tiles_m, int64_t tiles_n) {
    constexpr int64_t kBand = 8;
    batch = tile / (tiles_m * tiles_n);
    tile -= batch * (tiles_m * tiles_n);
    const int64_t first = tile / (kBand * tiles_n) * kBand, height = min(tiles_m - first, kBand);
    tile -= first * tiles_n;
    m = first + tile % height;
    n = tile / height;
  }
};

// The sums of a warp. A thread holds two adjacent sums of a 16 x 8 fragment in row lane / 4, and two in the row 8
// below.
template <class Mma, class Tile>
struct WarpSums {
  static constexpr int kCountM = Tile::kWarpM / Mma::kM, kCountN = Tile::kWarpN / Mma::kN;

  typename Mma::Accumulator values[kCountM][kCountN] = {};

  // The first row and column of the warp in its tile.
  static __device__ int row() { return threadIdx.x / 32 % (Tile::kM / Tile::kWarpM) * Tile::kWarpM; }
  static __device__ int column() { return threadIdx.x / 32 / (Tile::kM / Tile::kWarpM) * Tile::kWarpN; }
};

// Main loop: the product of the operands' tiles over [0, size) of k. `ring` is the block's shared memory.
template <class Mma, class Tile, class A, class B>
__forceinline__ __device__ WarpSums<Mma, Tile> accumulate(typename Mma::Element* ring, A& a, B& b, int64_t size) {
  using T = typename Mma::Element;
  constexpr int kStages = Tile::kStages, kStageSize = A::kSize + B::kSize;
  constexpr int kKBlocks = Tile::kK / Mma::kK, kBuffers = Tile::kReadsAhead ? 2 : 1;
  using Sums = WarpSums<Mma, Tile>;
  constexpr int kCountM = Sums::kCountM, kCountN = Sums::kCountN;
  static_assert(!Tile::kReadsAhead || (kKBlocks > 2 && kKBlocks % 2 == 0));
  const int warp_m = Sums::row(), warp_n = Sums::column();

  for (int stage = 0; stage < kStages - 1; ++stage) {
    T* const to = ring + stage * kStageSize;
    a.fetch(to, int64_t(stage) * Tile::kK, size);
    b.fetch(to + A::kSize, int64_t(stage) * Tile::kK, size);
    a.loader.store(to);
    b.loader.store(to + A::kSize);
    commit_copies();
  }

  Sums sums;
  typename Mma::FragmentA fragments_a[kBuffers][kCountM];
  typename Mma::FragmentB fragments_b[kBuffers][kCountN];
  int reading = 0, writing = kStages - 1;
  const auto wait = [] {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the stage to read is full, and the stage to write is empty
  };
  const auto next_stage = [&] {
    b.loader.store(ring + writing * kStageSize + A::kSize);
    commit_copies();
    reading = reading + 1 == kStages ? 0 : reading + 1;
    writing = writing + 1 == kStages ? 0 : writing + 1;
  };
  const auto read = [&](int k_block) {
    const T* const from = ring + reading * kStageSize;
    Mma::template load_a<A>(fragments_a[k_block % kBuffers], from + A::at(warp_m, k_block * Mma::kK));
    Mma::template load_b<B>(fragments_b[k_block % kBuffers], from + A::kSize + B::at(warp_n, k_block * Mma::kK));
  };
  if constexpr (Tile::kReadsAhead) {
    wait();
    read(0);
  }
  for (int64_t k = 0; k < size; k += Tile::kK) {
    if constexpr (!Tile::kReadsAhead) wait();
    T* const to = ring + writing * kStageSize;
    const int64_t next = k + (kStages - 1) * Tile::kK;
#pragma unroll
    for (int k_block = 0; k_block < kKBlocks; ++k_block) {
      if constexpr (Tile::kReadsAhead) {
        if (k_block == kKBlocks - 1) {
          next_stage();
          wait();
        }
        read((k_block + 1) % kKBlocks);
      }
      if (k_block == 0) a.fetch(to, next, size);
      if (k_block == kKBlocks / 2) {
        a.loader.store(to);
        b.fetch(to + A::kSize, next, size);
      }
      if constexpr (!Tile::kReadsAhead) read(k_block);
#pragma unroll
      for (int i = 0; i < kCountM; ++i)
#pragma unroll
        for (int j = 0; j < kCountN; ++j)
          Mma::multiply_add(sums.values[i][j], fragments_a[k_block % kBuffers][i], fragments_b[k_block % kBuffers][j]);
    }
    if constexpr (!Tile::kReadsAhead) next_stage();
  }
  return sums;
}

template <class Out, class Mma, class Tile, int kBytes, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    multistage_kernel(const MultistageCall<typename Mma::Element, Out> call) {
  using Shape = Multistage<Mma, Tile, kBytes, kAAlongK, kBAlongK>;
  using T = typename Mma::Element;
  extern __shared__ int4 shared[];
  begin_kernel();

  const TilePosition tile(call.first + blockIdx.x, call.tiles_m, call.tiles_n);
  typename Shape::A a(call.a, tile.batch, tile.m * Tile::kM, call.m);
  typename Shape::B b(call.b, tile.batch, tile.n * Tile::kN, call.n);
  using Sums = WarpSums<Mma, Tile>;
  const Sums all_sums = accumulate<Mma, Tile>(reinterpret_cast<T*>(shared), a, b, call.k);
  const auto& sums = all_sums.values;
  constexpr int kCountM = Sums::kCountM, kCountN = Sums::kCountN;
  const int warp_m = Sums::row(), warp_n = Sums::column();

  struct alignas(2 * sizeof(Out)) Pair {
    Out values[2];
  };
  const int lane = threadIdx.x % 32;
  if constexpr (std::is_same_v<Out, T>)
    if (!call.epilogue.is_empty()) {
      wait_for_copies<0>();
      __syncthreads();  // the ring has been read
      const SumTile<Mma, Tile> all = {reinterpret_cast<compute_t<T>*>(shared)};
#pragma unroll
      for (int i = 0; i < kCountM; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int j = 0; j < kCountN; ++j)
            all.store(warp_m + lane / 4 + i * Mma::kM + half * 8, warp_n + lane % 4 * 2 + j * Mma::kN,
                      sums[i][j][half * 2], sums[i][j][half * 2 + 1]);
      __syncthreads();
      all.finish(call, tile.m * Tile::kM, tile.n * Tile::kN);
      return;
    }
  const int64_t row0 = tile.m * Tile::kM + warp_m + lane / 4, column0 = tile.n * Tile::kN + warp_n + lane % 4 * 2;
  Out* const c = call.c + tile.batch * call.m * call.c_stride;
#pragma unroll
  for (int i = 0; i < kCountM; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = row0 + i * Mma::kM + half * 8;
      if (row >= call.m) continue;
#pragma unroll
      for (int j = 0; j < kCountN; ++j) {
        const int64_t column = column0 + j * Mma::kN;
        Out* const to = c + row * call.c_stride + column;
        Pair pair = {{from_compute<Out>(sums[i][j][half * 2]), from_compute<Out>(sums[i][j][half * 2 + 1])}};
        if constexpr (std::is_same_v<Out, compute_t<T>>)
          if (call.adds)
            for (int side = 0; side < 2; ++side)
              if (column + side < call.n) pair.values[side] += to[side];
        if (call.store_pairs) {
          if (column < call.n) *reinterpret_cast<Pair*>(to) = pair;
        } else {
          if (column < call.n) to[0] = pair.values[0];
          if (column + 1 < call.n) to[1] = pair.values[1];
        }
      }
    }
}

template <class Out, class Mma, class Tile, int kBytes, bool kAAlongK, bool kBAlongK>
Status launch_multistage_kernel(const Matmul& product, const Context& context) {
  using T = typename Mma::Element;
  const auto kernel = multistage_kernel<Out, Mma, Tile, kBytes, kAAlongK, kBAlongK>;
  constexpr int kRingBytes = Multistage<Mma, Tile, kBytes, kAAlongK, kBAlongK>::kSharedBytes;
  constexpr int kMaxBytes = std::max(kRingBytes, SumTile<Mma, Tile>::kSharedBytes);
  const int shared_bytes = product.epilogue.is_empty() ? kRingBytes : kMaxBytes;
  const auto operand = [](const Matmul::Matrix& matrix) {
    return Operand<T>{static_cast<const T*>(matrix.data), matrix.stride, matrix.batch_stride};
  };
  MultistageCall<T, Out> call = {
      .first = 0,
      .tiles_m = (product.m + Tile::kM - 1) / Tile::kM,
      .tiles_n = (product.n + Tile::kN - 1) / Tile::kN,
      .m = product.m,
      .n = product.n,
      .k = product.k,
      .a = operand(product.a),
      .b = operand(product.b),
      .c = static_cast<Out*>(product.c),
      .c_stride = product.c_stride,
      .store_pairs = product.n % 2 == 0 && product.c_stride % 2 == 0 &&
                     reinterpret_cast<uintptr_t>(product.c) % (2 * sizeof(Out)) == 0,
      .adds = product.adds,
      .epilogue = ElementEpilogue<T>(product.epilogue),
  };
  constexpr int64_t kMaxBlocks = INT32_MAX;  // limit of a grid
  for (const int64_t tiles = call.tiles_m * call.tiles_n * product.batch; call.first < tiles;
       call.first += kMaxBlocks) {
    const int64_t blocks = std::min(tiles - call.first, kMaxBlocks);
    Grid grid{blocks, Tile::kThreads, shared_bytes};
    grid.early = can_be_early(blocks);
    FUSEDOPS_TRY(launch(context, kernel, grid, call));
  }
  return {};
}

template <class Out, class Mma, class Tile, int kBytes>
Status launch_multistage(const Matmul& product, const Context& context) {
  // The lines of op(a) run along k unless it is transposed; those of op(b) do if it is.
  if (product.a.transposed)
    return product.b.transposed ? launch_multistage_kernel<Out, Mma, Tile, kBytes, false, true>(product, context)
                                : launch_multistage_kernel<Out, Mma, Tile, kBytes, false, false>(product, context);
  return product.b.transposed ? launch_multistage_kernel<Out, Mma, Tile, kBytes, true, true>(product, context)
                              : launch_multistage_kernel<Out, Mma, Tile, kBytes, true, false>(product, context);
}

}  // namespace fusedops::cuda
