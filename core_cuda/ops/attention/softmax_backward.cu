// Limit: memory bandwidth. Every element of dy and y is read once, held in registers while its row is summed, and dx is
// written once. A row that fits neither a block nor a cluster is read twice, as in the forward.
#include "core/cuda/rounding.cuh"
#include "core/cuda/row_cluster.cuh"
#include "ops/attention/softmax.h"

namespace fusedops {
namespace cuda {
namespace {

constexpr int kBackwardPacks = 4;  // per tensor and thread

template <bool kAligned, class T>
struct BackwardTile {
  using A = compute_t<T>;

  const SoftmaxBackward<T>& call;
  const RowThread<>& me;
  const int64_t end;  // the column after the last one of this block
  Pack<T> dy[kBackwardPacks], y[kBackwardPacks];

  __device__ void load(int64_t tile) {
#pragma unroll
    for (int p = 0; p < kBackwardPacks; ++p) {
      const int64_t at = me.at<T>(tile, p), n = count(at);
      dy[p] = load_row_pack<kAligned>(call.dy + me.row * call.dy_stride + at, n);
      y[p] = load_row_pack<kAligned>(call.y + me.row * call.y_stride + at, n);
    }
    reset();
  }

  __device__ void reset() {
#pragma unroll
    for (int p = 0; p < kBackwardPacks; ++p) forget(dy[p]), forget(y[p]);
  }

  __device__ A dot() const {
    A sum = 0;
#pragma unroll
    for (int p = 0; p < kBackwardPacks; ++p)
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) sum = fused(element(dy[p], i), element(y[p], i), sum);
    return sum;
  }

  __device__ void store(int64_t tile, A sum) const {
#pragma unroll
    for (int p = 0; p < kBackwardPacks; ++p) {
      const int64_t at = me.at<T>(tile, p);
      if (count(at) <= 0) return;
      A dx[kPackSize<T>];
#pragma unroll
      for (int i = 0; i < kPackSize<T>; ++i) dx[i] = call.scale * element(y[p], i) * (element(dy[p], i) - sum);
      store_row_pack<kAligned>(rounded<T>(dx), call.dx + me.row * call.cols + at, count(at));
    }
  }

  __device__ int64_t count(int64_t at) const { return me.row < call.rows ? end - at : 0; }
};

// The variant is a run-time condition: as a constant, the compiler would keep the elements of both tensors in
// the compute type and spill 96 bytes.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kMaxRowThreads) softmax_backward_kernel(SoftmaxBackward<T> call, RowGroups groups) {
  using A = compute_t<T>;
  begin_kernel();
  RowCluster cluster(groups);
  const RowThread<> me(groups, groups.cluster_index());
  BackwardTile<kAligned, T> row{call, me, groups.end(call.cols)};
  const bool held = groups.holds(call.cols);
  A sum = 0;
  groups.each_tile(call.cols, [&](int64_t tile) {
    row.load(tile);
    sum += row.dot();
    row.reset();
  });
  __shared__ A scratch[32], of_blocks[2][kMaxCluster];
  sum = cluster.sum(row_reduce(me, sum, scratch, [](A a, A b) { return a + b; }), of_blocks);
  groups.each_tile(call.cols, [&](int64_t tile) {
    if (!held) row.load(tile);
    row.store(tile, sum);
  });
}

template <class T>
Status backward_rows(const SoftmaxBackward<T>& call, const Context& context) {
  const bool aligned = are_rows_aligned(call.cols, call.dy, call.dy_stride) &&
                       are_rows_aligned(call.cols, call.y, call.y_stride) && is_aligned(call.dx);
  const auto kernel = aligned ? softmax_backward_kernel<true, T> : softmax_backward_kernel<false, T>;
  const RowGroups groups = block_or_cluster<T, kBackwardPacks>(call.cols, kMaxRowThreads, kernel);
  return launch(context, kernel, groups.grid(call.rows), call, groups);
}

}  // namespace
}  // namespace cuda

Status softmax_backward_cuda(const Call& call) {
  return dispatch(call.outputs[output_of(kSoftmaxBackward, "dx")].dtype, [&](auto tag) {
    return cuda::backward_rows(SoftmaxBackward<typename decltype(tag)::type>(call), call.context);
  });
}

}  // namespace fusedops
