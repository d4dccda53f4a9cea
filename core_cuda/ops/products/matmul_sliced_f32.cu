// float32 products of few tiles on CUDA cores. A block computes a tile of 32 rows; the warps that share a part of it
// divide each stage of k into slices, so that a small tile keeps eight warps busy and each thread has 4 x 8 sums. The
// slices' sums are added in a fixed order. Limit: shared memory, of which a thread reads 12 elements for 32
// multiply-adds, four at a time.
#include "ops/products/epilogue.cuh"
#include "ops/products/matmul_kernels.h"
#include "ops/products/matmul_tile_loader.cuh"

namespace fusedops::cuda {
namespace {

constexpr int kWarpRows = 32, kWarpColumns = 32;  // tile of a warp
constexpr int kRowLanes = 8, kColumnLanes = 4;    // lanes along the rows and along the columns
constexpr int kRowSums = kWarpRows / kRowLanes, kColumnSums = kWarpColumns / kColumnLanes;  // of a thread
constexpr int kVector = 4;  // elements of a 16-byte access

template <int kN_, int kStages_>
struct SlicedTile {
  static constexpr int kM = kWarpRows, kN = kN_, kK = 32, kStages = kStages_;
  static constexpr int kSlices = kThreads / 32 / (kN / kWarpColumns);
  static constexpr int kDepth = kK / kSlices;  // elements of k in a slice
  static constexpr int kSumPitch = kN + kVector;
  static_assert(kDepth % kVector == 0);
};

// Both have about 55 KiB of stages, so that two blocks fit on every multiprocessor that has 128 KiB.
using Tile32x32 = SlicedTile<32, 6>;
using Tile32x64 = SlicedTile<64, 4>;

struct SlicedCall {
  uint32_t tiles_m, tiles_n;
  int64_t m, n, k;
  Matmul::Matrix a, b;
  float* c;
  int64_t c_stride;
  bool adds;
  ElementEpilogue<float> epilogue;
};

// Tile of op(a), or of op(b) transposed: kRows rows of kK elements of k, whose lines in memory run along k or not.
template <int kRows, int kK, int kBytes, bool kAlongK>
struct SlicedOperand {
  static constexpr int kLines = kAlongK ? kRows : kK;
  static constexpr int kWidth = kAlongK ? kK : kRows;
  static constexpr int kPitch = kWidth + kVector;  // 16-byte reads of eight lines are in different banks
  static constexpr int kSize = kLines * kPitch;

  TileLoader<float, kLines, kWidth, kPitch, kThreads, kBytes> loader;
  const float* data;
  int64_t stride;
  int rows;  // rows of the tile within the matrix

  __device__ SlicedOperand(const Matmul::Matrix& matrix, int64_t batch, int64_t row, int64_t count)
      : data(static_cast<const float*>(matrix.data) + batch * matrix.batch_stride +
             row * (kAlongK ? matrix.stride : 1)),
        stride(matrix.stride),
        rows(static_cast<int>(min(count - row, int64_t(kRows)))) {}

  __device__ void fetch(float* to, int64_t at_k, int64_t k) {
    const int depth = static_cast<int>(max(min(k - at_k, int64_t(kK)), int64_t(0)));
    loader.fetch(to, data + at_k * (kAlongK ? 1 : stride), stride, kAlongK ? rows : depth, kAlongK ? depth : rows);
  }

  // The row of a thread's i-th element. Where lines run along k, eight lanes read eight neighbouring lines; elsewhere
  // a thread reads four neighbouring rows at once.
  template <int kLanes>
  static __device__ int row(int lane, int i) {
    return kAlongK ? lane + kLanes * i : kVector * (lane + kLanes * (i / kVector)) + i % kVector;
  }

  // Reads the thread's kCount elements at each of kVector elements of k.
  template <int kLanes, int kCount>
  static __device__ void read(float (&values)[kVector][kCount], const float* from, int first, int lane, int k) {
    if constexpr (kAlongK) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float4 line = *reinterpret_cast<const float4*>(from + (first + row<kLanes>(lane, i)) * kPitch + k);
        values[0][i] = line.x, values[1][i] = line.y, values[2][i] = line.z, values[3][i] = line.w;
      }
    } else {
#pragma unroll
      for (int e = 0; e < kVector; ++e)
#pragma unroll
        for (int i = 0; i < kCount; i += kVector) {
          const float4 line = *reinterpret_cast<const float4*>(from + (k + e) * kPitch + first + row<kLanes>(lane, i));
          values[e][i] = line.x, values[e][i + 1] = line.y, values[e][i + 2] = line.z, values[e][i + 3] = line.w;
        }
    }
  }
};

template <class Tile, int kBytes, bool kAAlongK, bool kBAlongK>
struct SlicedShape {
  using A = SlicedOperand<Tile::kM, Tile::kK, kBytes, kAAlongK>;
  using B = SlicedOperand<Tile::kN, Tile::kK, kBytes, kBAlongK>;
  static constexpr int kStageSize = A::kSize + B::kSize;
  static constexpr int kSharedBytes = Tile::kStages * kStageSize * sizeof(float);
  static_assert(Tile::kStages * kStageSize >= Tile::kSlices * Tile::kM * Tile::kSumPitch);
};

template <class Tile, int kBytes, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(kThreads, 2) sliced_kernel(const SlicedCall call) {
  using Shape = SlicedShape<Tile, kBytes, kAAlongK, kBAlongK>;
  using A = typename Shape::A;
  using B = typename Shape::B;
  constexpr int kStages = Tile::kStages, kStageSize = Shape::kStageSize;
  extern __shared__ float4 memory[];
  float* const shared = reinterpret_cast<float*>(memory);
  begin_kernel();

  const uint32_t column_tile = blockIdx.x / call.tiles_m, tile_m = blockIdx.x % call.tiles_m;
  const int64_t batch = column_tile / call.tiles_n, tile_n = column_tile % call.tiles_n;
  const int64_t row0 = int64_t(tile_m) * Tile::kM, column0 = tile_n * Tile::kN;
  A a(call.a, batch, row0, call.m);
  B b(call.b, batch, column0, call.n);
  const int lane = threadIdx.x % 32, row_lane = lane / kColumnLanes, column_lane = lane % kColumnLanes;
  const int slice = threadIdx.x / 32 % Tile::kSlices;
  const int warp_column = threadIdx.x / 32 / Tile::kSlices * kWarpColumns;

  const auto fetch = [&](int stage, int64_t at_k) {
    float* const to = shared + stage * kStageSize;
    a.fetch(to, at_k, call.k);
    b.fetch(to + A::kSize, at_k, call.k);
    commit_copies();
  };
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage, int64_t(stage) * Tile::kK);

  float sums[kRowSums][kColumnSums] = {};
  int reading = 0, writing = kStages - 1;
  for (int64_t k = 0; k < call.k; k += Tile::kK) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the stage to read is full, and the stage to write is empty
    fetch(writing, k + (kStages - 1) * Tile::kK);
    const float* const from = shared + reading * kStageSize;
#pragma unroll
    for (int at = 0; at < Tile::kDepth; at += kVector) {
      float rows[kVector][kRowSums], columns[kVector][kColumnSums];
      A::template read<kRowLanes>(rows, from, 0, row_lane, slice * Tile::kDepth + at);
      B::template read<kColumnLanes>(columns, from + A::kSize, warp_column, column_lane, slice * Tile::kDepth + at);
#pragma unroll
      for (int e = 0; e < kVector; ++e)
#pragma unroll
        for (int i = 0; i < kRowSums; ++i)
#pragma unroll
          for (int j = 0; j < kColumnSums; ++j) sums[i][j] = __fmaf_rn(rows[e][i], columns[e][j], sums[i][j]);
    }
    reading = reading + 1 == kStages ? 0 : reading + 1;
    writing = writing + 1 == kStages ? 0 : writing + 1;
  }

  wait_for_copies<0>();
  __syncthreads();  // the stages have been read
  constexpr int kSumPitch = Tile::kSumPitch, kSlice = Tile::kM * kSumPitch;
#pragma unroll
  for (int i = 0; i < kRowSums; ++i) {
    float* const to = shared + slice * kSlice + A::template row<kRowLanes>(row_lane, i) * kSumPitch + warp_column;
#pragma unroll
    for (int j = 0; j < kColumnSums; j += kBAlongK ? 1 : kVector) {
      float* const at = to + B::template row<kColumnLanes>(column_lane, j);
      if constexpr (kBAlongK)
        *at = sums[i][j];
      else
        *reinterpret_cast<float4*>(at) = {sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]};
    }
  }
  __syncthreads();

  // Neighbouring threads store neighbouring elements, whatever the alignment of c.
  float* const c = call.c + batch * call.m * call.c_stride;
  const auto store = [&](int i, auto&& finish) {
    const int row = i / Tile::kN, column = i % Tile::kN;
    if (row >= call.m - row0 || column >= call.n - column0) return;
    float sum = 0;
#pragma unroll
    for (int part = 0; part < Tile::kSlices; ++part) sum += shared[part * kSlice + row * kSumPitch + column];
    const int64_t at = (row0 + row) * call.c_stride + column0 + column;
    sum = finish(sum, at, column0 + column);
    c[at] = call.adds ? sum + c[at] : sum;
  };
  if (call.epilogue.is_empty()) {
#pragma unroll
    for (int i = 0; i < Tile::kM * Tile::kN; i += kThreads)
      store(i + threadIdx.x, [](float sum, int64_t, int64_t) { return sum; });
  } else {
#pragma unroll 1
    for (int i = threadIdx.x; i < Tile::kM * Tile::kN; i += kThreads)
      store(i, [&](float sum, int64_t at, int64_t column) { return call.epilogue.finish(sum, at, column); });
  }
}

template <class Tile, int kBytes, bool kAAlongK, bool kBAlongK>
Status run(const Matmul& product, const Context& context) {
  const int64_t tiles_m = (product.m + Tile::kM - 1) / Tile::kM, tiles_n = (product.n + Tile::kN - 1) / Tile::kN;
  const SlicedCall call = {
      .tiles_m = uint32_t(tiles_m),
      .tiles_n = uint32_t(tiles_n),
      .m = product.m,
      .n = product.n,
      .k = product.k,
      .a = product.a,
      .b = product.b,
      .c = static_cast<float*>(product.c),
      .c_stride = product.c_stride,
      .adds = product.adds,
      .epilogue = ElementEpilogue<float>(product.epilogue),
  };
  constexpr int kSharedBytes = SlicedShape<Tile, kBytes, kAAlongK, kBAlongK>::kSharedBytes;
  Grid grid{tiles_m * tiles_n * product.batch, kThreads, kSharedBytes};
  grid.early = can_be_early(grid.blocks);
  return launch(context, sliced_kernel<Tile, kBytes, kAAlongK, kBAlongK>, grid, call);
}

template <class Tile, int kBytes>
Status run(const Matmul& product, const Context& context) {
  // The lines of op(a) run along k unless it is transposed; those of op(b) do if it is.
  if (product.a.transposed)
    return product.b.transposed ? run<Tile, kBytes, false, true>(product, context)
                                : run<Tile, kBytes, false, false>(product, context);
  return product.b.transposed ? run<Tile, kBytes, true, true>(product, context)
                              : run<Tile, kBytes, true, false>(product, context);
}

template <class Tile>
Status run(const Matmul& product, const Context& context) {
  return has_aligned_rows(product) ? run<Tile, 16>(product, context) : run<Tile, 4>(product, context);
}

}  // namespace

Status sliced_f32(const Matmul& product, ProductKernel kernel, const Context& context) {
  return kernel == ProductKernel::f32_32x32 ? run<Tile32x32>(product, context) : run<Tile32x64>(product, context);
}

}  // namespace fusedops::cuda
