// Preprocessing and postprocessing of the backward: delta = sum(dy * y) - dlse for each row, and dq = scale * its
// float32 sum. Limit: memory bandwidth. dy, y and the sums are read once.
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"
#include "ops/attention/attention_dq.cuh"
#include "ops/attention/attention_kernels.h"
#include "ops/attention/attention_tiles.cuh"
#include "ops/attention/softmax_base.cuh"

namespace fusedops::cuda {
namespace {

constexpr int kLanes = 16;  // lanes per row

// Row `index` in the order of lse.
struct Row {
  __device__ Row(const Attention& call, int64_t index) {
    const int64_t positions = call.offsets_q ? call.packed_queries : call.queries;
    position = index % positions, index /= positions;
    head = index % call.heads, sequence = index / call.heads;
  }

  int64_t sequence, position, head;
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_begin_backward_kernel(const __grid_constant__ Attention call, const BackwardSums sums,
                                    const bool aligned) {
  using A = compute_t<T>;
  begin_kernel();
  const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x, index = thread / kLanes;
  const int lane = threadIdx.x % kLanes;
  if (sums.semaphores)
    for (int64_t i = thread; i < sums.semaphore_count; i += int64_t(gridDim.x) * kThreads) sums.semaphores[i] = 0;
  A sum = 0;
  if (index < sums.rows) {
    const Row row(call, index);
    const T* const dy = call.dy.row<const T>(row.sequence, row.position, row.head);
    const T* const y = call.y.row<const T>(row.sequence, row.position, row.head);
    for (int i = lane * kPackSize<T>; i < call.dim_v; i += kLanes * kPackSize<T>) {
      const Pack<T> a = aligned ? load_pack<true>(dy + i, call.dim_v - i) : load_pack<false>(dy + i, call.dim_v - i);
      const Pack<T> b = aligned ? load_pack<true>(y + i, call.dim_v - i) : load_pack<false>(y + i, call.dim_v - i);
#pragma unroll
      for (int j = 0; j < kPackSize<T>; ++j) sum += element(a, j) * element(b, j);
    }
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (index < sums.rows && lane == 0) {
    const Row row(call, index);
    static_cast<A*>(sums.delta)[index] = call.delta(sum, row.sequence, row.position, row.head);
  }
}

// A block has a tile of queries. A thread takes 8 columns of two rows, which are adjacent in the sums.
template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_finish_dq_kernel(const __grid_constant__ Attention call, const BackwardSums sums, const float scale,
                               const bool aligned) {
  begin_kernel();
  constexpr int kTile = BackwardSums::kTile, kRows = DqFragment::kRows, kColumns = DqFragment::kColumns;
  const HeadTile work = find_tile(call, Side::queries, blockIdx.x, gridDim.x, kTile);
  if (work.sequence < 0) return;
  const Sequence sequence = call.sequence(work.sequence);
  const int64_t first_row = BackwardSums::dq_row(call, work.sequence, sequence, work.head);
  const int packs = static_cast<int>(sums.pitch) / kColumns;
  for (int i = threadIdx.x; i < kTile / 2 * packs; i += kThreads) {
    const int column = i % packs * kColumns, row = i / packs % (kRows / 2);
    const int first = work.tile * kTile + i / packs / (kRows / 2) * kRows;  // first row of the fragment
    if (column >= call.dim) continue;
    // A query without visible keys has no stored sum.
    const auto has_sum = [&](int query) {
      return query < sequence.queries && !call.band.keys(sequence, query).is_empty();
    };
    float sum[2][kColumns] = {};
    if (has_sum(first + row) || has_sum(first + row + kRows / 2))
      DqFragment(sums, first_row + first, column).read(row, sum[0], sum[1]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first + row + half * (kRows / 2);
      if (query >= sequence.queries) continue;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sum[half][j] = has_sum(query) ? sum[half][j] * scale : 0;
      T* const dq = call.dq.row<T>(call.batch_index(work.sequence), sequence.first_query + query, work.head) + column;
      if (aligned)
        store_pack<true>(rounded<T>(sum[half]), dq, call.dim - column);
      else
        store_pack<false>(rounded<T>(sum[half]), dq, call.dim - column);
    }
  }
}

constexpr int kSinkThreads = 1024;

// T: the dtype of q. S: the dtype of the sinks.
template <class T, class S>
__global__ void __launch_bounds__(kSinkThreads)
    attention_sinks_kernel(const __grid_constant__ Attention call, const RowStatistics rows) {
  using A = compute_t<T>;
  begin_kernel();
  const int head = blockIdx.x;
  const A sink = call.sinks.get<T>(head);
  A sum = 0;
  for (int64_t outer = 0; outer < rows.outer; ++outer) {
    const int64_t first = (outer * call.heads + head) * rows.inner;
#pragma unroll 4
    for (int64_t i = first + threadIdx.x; i < first + rows.inner; i += kSinkThreads) {
      const A lse = static_cast<const A*>(rows.lse)[i], delta = static_cast<const A*>(rows.delta)[i];
      const A exponent = rows.has_log2_lse ? sink * A(kLog2E) - lse : (sink - lse) * A(kLog2E);
      if (lse > kNegInf<A>) sum -= exp2_(exponent) * delta;
    }
  }
  sum = block_sum<kSinkThreads>(sum);
  if (threadIdx.x == 0) static_cast<S*>(call.dsinks)[head] = from_compute<S>(static_cast<compute_t<S>>(sum));
}

int64_t blocks_of(int64_t rows) { return (rows * kLanes + kThreads - 1) / kThreads; }

template <class T>
Status finish(const Attention& call, const BackwardSums& sums, const Context& context) {
  const int64_t blocks = most_tiles(call, Side::queries, BackwardSums::kTile) * call.heads;
  return launch(context, attention_finish_dq_kernel<T>, blocks, kThreads, call, sums, static_cast<float>(call.scale),
                are_aligned<T>(call.dq));
}

}  // namespace

Status sum_sinks(const Attention& call, const RowStatistics& rows, const Context& context) {
  return dispatch(call.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto kernel = call.sinks.is_f32 ? attention_sinks_kernel<T, float> : attention_sinks_kernel<T, T>;
    return launch(context, kernel, call.heads, kSinkThreads, call, rows);
  });
}

Status begin_backward(const Attention& call, const BackwardSums& sums, const Context& context) {
  FUSEDOPS_TRY(dispatch(call.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    // At least one block, since it initializes the counter that numbers the blocks of the backward.
    return launch(context, attention_begin_backward_kernel<T>, std::max<int64_t>(blocks_of(sums.rows), 1), kThreads,
                  call, sums, are_aligned<T>(call.dy) && are_aligned<T>(call.y));
  }));
  if (!call.dsinks) return {};
  const bool packed = call.offsets_q;
  return sum_sinks(call,
                   {call.lse.data, sums.delta, packed ? 1 : call.sequences, packed ? call.packed_queries : call.queries,
                    /*has_log2_lse=*/false},
                   context);
}

Status finish_dq(const Attention& call, const BackwardSums& sums, const Context& context) {
  return call.dtype == DType::f16 ? finish<f16>(call, sums, context) : finish<bf16>(call, sums, context);
}

}  // namespace fusedops::cuda
