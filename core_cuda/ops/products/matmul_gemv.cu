// GEMV of any dtype, stride and alignment on CUDA cores. Each element of the matrix is read once, in packs of 16 bytes
// that the two aligned words around them contain, so that misaligned lines need no copy. Aligned and misaligned lines
// give the same bits.
//
// Lines along k: a block has 4 columns, and its threads take packs of their lines in turn. Lines along n: a half-warp
// has 16 adjacent packs of a line, and the half-warps of a block take lines in turn. Few columns need splits of k. A
// cluster adds up to 8 splits in shared memory; otherwise a second kernel adds them, in the same order.
//
// Limit: memory bandwidth, with 32 to 64 KB of loads in flight per multiprocessor.
#include <cooperative_groups.h>

#include "core/cuda/pack.cuh"
#include "core/cuda/rounding.cuh"
#include "ops/products/epilogue.cuh"
#include "ops/products/matmul_gemv.h"
#include "ops/products/matmul_kernels.h"

namespace fusedops::cuda {
namespace {

template <class T>
struct GemvCall {
  const T *x, *matrix;
  int64_t x_row_step, x_k_step, stride;  // stride: between lines of the matrix
  int64_t rows, columns, k, depth;
  int splits;
  bool is_turned, has_sums, adds;  // has_sums: c has the type of the sums
  void* c;
  compute_t<T>* partials;  // [splits, m, n]; null: c is written
  ElementEpilogue<T> epilogue;

  // Offset in c. Only a turned product has adjacent rows.
  __device__ int64_t at(int64_t row, int64_t column) const {
    return is_turned ? column * rows + row : row * columns + column;
  }

  __device__ void store(int64_t row, int64_t column, compute_t<T> sum) const {
    const int64_t i = at(row, column);
    sum = epilogue.finish(sum, i, is_turned ? row : column);
    if (has_sums)
      static_cast<compute_t<T>*>(c)[i] = adds ? sum + static_cast<compute_t<T>*>(c)[i] : sum;
    else
      static_cast<T*>(c)[i] = from_compute<T>(sum);
  }
};

// A load of a pack with zeros behind its `count` elements. Aligned packs are whole or absent.
template <bool kAligned, class T>
struct PackLoad : UnalignedPack<T> {};

template <class T>
struct PackLoad<true, T> {
  Pack<T> pack;

  __device__ void begin(const T* from, int64_t count) { pack = load_row_pack<true>(from, count); }
  __device__ Pack<T> end() const { return pack; }
};

// The number of elements that a pack of a line may read: all up to the end of the matrix, unless the line ends in it.
template <class T>
__device__ int64_t readable(int64_t left_of_line, int64_t lines_behind, int64_t stride) {
  return left_of_line < kPackSize<T> ? left_of_line : lines_behind * stride + left_of_line;
}

// Adds the products of [first, end) of k to the sums of a thread, for the columns from `column` on.
template <bool kAligned, int kThreads, class T, int kRows>
__device__ void add_along_k(const GemvCall<T>& call, int64_t column, int64_t first, int64_t end,
                            compute_t<T> (&sums)[kRows][Gemv::kLines]) {
  constexpr int kPack = kPackSize<T>, kLines = Gemv::kLines;
  for (int64_t at = first + threadIdx.x * kPack; at < end; at += kThreads * kPack) {
    PackLoad<kAligned, T> packs[kLines];
    UnalignedPack<T> of_x[kRows];
    Pack<T> x[kRows];
    const int64_t left = call.k - at;
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      const int64_t line = column + i, behind = call.columns - 1 - line;
      packs[i].begin(call.matrix + line * call.stride + at, behind < 0 ? 0 : readable<T>(left, behind, call.stride));
    }
    if (call.x_k_step == 1) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const int64_t behind = call.rows - 1 - row;
        of_x[row].begin(call.x + row * call.x_row_step + at,
                        behind < 0 ? 0 : readable<T>(left, behind, call.x_row_step));
      }
#pragma unroll
      for (int row = 0; row < kRows; ++row) x[row] = of_x[row].end();
    } else {
#pragma unroll
      for (int row = 0; row < kRows; ++row)
#pragma unroll
        for (int e = 0; e < kPack; ++e)
          x[row].values[e] =
              row < call.rows && e < left ? call.x[row * call.x_row_step + (at + e) * call.x_k_step] : T{};
    }
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      const Pack<T> pack = packs[i].end();
#pragma unroll
      for (int e = 0; e < kPack; ++e)
#pragma unroll
        for (int row = 0; row < kRows; ++row) sums[row][i] = fused(element(x[row], e), element(pack, e), sums[row][i]);
    }
  }
}

// The same for a pack of columns.
template <bool kAligned, int kThreads, class T, int kRows>
__device__ void add_along_n(const GemvCall<T>& call, int64_t column, int64_t first, int64_t end,
                            compute_t<T> (&sums)[kRows][kPackSize<T>]) {
  constexpr int kPack = kPackSize<T>, kGroups = kThreads / Gemv::kLanes;
  constexpr int kBatch = kAligned && kRows == 1 ? 8 : 4;  // loads in flight; a misaligned one takes 8 registers
  for (int64_t at = first + threadIdx.x / Gemv::kLanes; at < end; at += kGroups * kBatch) {
    PackLoad<kAligned, T> packs[kBatch];
    compute_t<T> x[kBatch][kRows];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t line = at + i * kGroups, left = line < end ? call.columns - column : 0;
      packs[i].begin(call.matrix + line * call.stride + column,
                     left > 0 ? readable<T>(left, call.k - 1 - line, call.stride) : 0);
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        x[i][row] = line < end && row < call.rows ? to_compute(call.x[row * call.x_row_step + line * call.x_k_step])
                                                  : compute_t<T>(0);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const Pack<T> pack = packs[i].end();
#pragma unroll
      for (int e = 0; e < kPack; ++e)
#pragma unroll
        for (int row = 0; row < kRows; ++row) sums[row][e] = fused(x[i][row], element(pack, e), sums[row][e]);
    }
  }
}

template <class A>
__device__ void add_of_lanes(A& sum, int distance) {
  sum += __shfl_xor_sync(~0u, sum, distance);
}

template <bool kAlongK>
inline constexpr int kGemvThreads = kAlongK ? 128 : 256;

// Threads per multiprocessor, which limit the registers.
constexpr int resident_threads(int rows, bool along_k, bool aligned) {
  return rows > 1 ? 512 : along_k && aligned ? 1024 : 768;
}

template <class T, int kRows, bool kAlongK, bool kAligned>
__global__ void __launch_bounds__(kGemvThreads<kAlongK>,
                                  resident_threads(kRows, kAlongK, kAligned) / kGemvThreads<kAlongK>)
    gemv_kernel(const GemvCall<T> call) {
  begin_kernel();
  using A = compute_t<T>;
  constexpr int kThreads = kGemvThreads<kAlongK>, kWarps = kThreads / 32;
  constexpr int kOfThread = kAlongK ? Gemv::kLines : kPackSize<T>;  // columns
  constexpr int kColumns = kAlongK ? Gemv::kLines : Gemv::kLanes * kPackSize<T>, kSums = kRows * kColumns;
  __shared__ A totals[kWarps][kSums];
  const unsigned tile = blockIdx.x / call.splits, split = blockIdx.x % call.splits;
  const int64_t column0 = int64_t(tile) * kColumns, first = split * call.depth, end = min(first + call.depth, call.k);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_of_lane = kAlongK ? 0 : lane % Gemv::kLanes * kOfThread;  // column

  A sums[kRows][kOfThread] = {};
  if constexpr (kAlongK)
    add_along_k<kAligned, kThreads>(call, column0, first, end, sums);
  else
    add_along_n<kAligned, kThreads>(call, column0 + first_of_lane, first, end, sums);
#pragma unroll
  for (int row = 0; row < kRows; ++row)
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
#pragma unroll
      for (int distance = 16; distance >= (kAlongK ? 1 : Gemv::kLanes); distance /= 2)
        add_of_lanes(sums[row][i], distance);
      if (lane < (kAlongK ? 1 : Gemv::kLanes)) totals[warp][row * kColumns + first_of_lane + i] = sums[row][i];
    }
  __syncthreads();
  const bool is_cluster = !call.partials && call.splits > 1;
  for (int i = threadIdx.x; i < kSums; i += kThreads) {
    A total = totals[0][i];
#pragma unroll
    for (int other = 1; other < kWarps; ++other) total += totals[other][i];
    totals[0][i] = total;
  }
#if __CUDA_ARCH__ >= 900
  if (is_cluster) cooperative_groups::this_cluster().sync();  // the totals of all splits can be read
#endif
  const int parts = is_cluster ? call.splits : 1, part = is_cluster ? int(split) : 0;
  for (int i = threadIdx.x + part * kThreads; i < kSums; i += kThreads * parts) {
    A total = totals[0][i];
#if __CUDA_ARCH__ >= 900
    if (is_cluster) {
      total = 0;
      for (int rank = 0; rank < parts; ++rank)
        total += *cooperative_groups::this_cluster().map_shared_rank(&totals[0][i], rank);
    }
#endif
    const int64_t row = i / kColumns, column = column0 + i % kColumns;
    if (row >= call.rows || column >= call.columns) continue;
    if (call.partials)
      call.partials[split * call.rows * call.columns + call.at(row, column)] = total;
    else
      call.store(row, column, total);
  }
#if __CUDA_ARCH__ >= 900
  if (is_cluster) cooperative_groups::this_cluster().sync();  // no block ends while another reads its totals
#endif
}

template <class T, int kRows, bool kAlongK, bool kAligned>
Status run(const Matmul& product, const Gemv& gemv, void* workspace, const Context& context) {
  const auto kernel = gemv_kernel<T, kRows, kAlongK, kAligned>;
  // Clusters of the kernel for several rows, which has more registers, would not all be resident at once.
  const bool is_cluster = kRows == 1 && gemv.splits > 1 && cluster_for(kernel, gemv.splits, 1) == gemv.splits;
  const bool has_partials = gemv.splits > 1 && !is_cluster;
  const GemvCall<T> call = {
      .x = static_cast<const T*>(gemv.x.data),
      .matrix = static_cast<const T*>(gemv.matrix.data),
      .x_row_step = gemv.x.transposed ? 1 : gemv.x.stride,
      .x_k_step = gemv.x.transposed ? gemv.x.stride : 1,
      .stride = gemv.matrix.stride,
      .rows = gemv.rows,
      .columns = gemv.columns,
      .k = product.k,
      .depth = gemv.depth,
      .splits = static_cast<int>(gemv.splits),
      .is_turned = gemv.is_turned,
      .has_sums = product.has_compute_dtype_c,
      .adds = product.adds,
      .c = product.c,
      .partials = has_partials ? static_cast<compute_t<T>*>(workspace) : nullptr,
      .epilogue = ElementEpilogue<T>(product.epilogue),
  };
  constexpr int kColumns = kAlongK ? Gemv::kLines : Gemv::kLanes * kPackSize<T>;
  Grid grid = {ceil_div(gemv.columns, int64_t(kColumns)) * gemv.splits, kGemvThreads<kAlongK>};
  if (is_cluster) grid.cluster = call.splits;
  grid.early = sizeof(T) == 2;  // wider elements take longer than the launch: see can_be_early()
  FUSEDOPS_TRY(launch(context, kernel, grid, call));
  return has_partials ? finish_sums(product, workspace, gemv.splits, context) : Status();
}

template <class T, int kRows>
Status run(const Matmul& product, const Gemv& gemv, void* workspace, const Context& context) {
  const auto& [data, lines_along_k, stride, batch_stride] = gemv.matrix;
  const bool aligned = are_rows_aligned(lines_along_k ? product.k : gemv.columns, static_cast<const T*>(data), stride);
  const auto chosen = lines_along_k ? aligned ? run<T, kRows, true, true> : run<T, kRows, true, false>
                      : aligned     ? run<T, kRows, false, true>
                                    : run<T, kRows, false, false>;
  return chosen(product, gemv, workspace, context);
}

}  // namespace

Status matmul_gemv(const Matmul& product, void* workspace, const Context& context) {
  const Gemv gemv(product);
  return dispatch(product.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return (gemv.rows == 1 ? run<T, 1> : run<T, Gemv::kMaxRows>)(product, gemv, workspace, context);
  });
}

}  // namespace fusedops::cuda
