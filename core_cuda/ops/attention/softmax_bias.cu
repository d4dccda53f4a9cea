// softmax with a bias, and the gradient of the bias.
//
// Two kernels compute the gradient: sum(dy * y) of each row, and sums over the rows that share a row of the bias. A
// block of the second has 32 of its columns; its warps divide the rows. Limit: memory bandwidth. dy and y are read
// twice.
#include "core/cuda/reduce.cuh"
#include "ops/attention/softmax_rows.cuh"

namespace fusedops {
namespace cuda {

Status biased_softmax(const Call& call) {
  return dispatch(call.outputs[output_of(kSoftmax, "y")].dtype, [&](auto tag) {
    const Softmax<typename decltype(tag)::type> rows(call);
    const View* mask = call.inputs[input_of(kSoftmax, "mask")];
    MaskAndBias terms;
    if (mask) terms.mask = BroadcastMask(*mask, *call.inputs[input_of(kSoftmax, "x")]);
    terms.has_mask = mask, terms.bias = softmax_bias(call);
    return softmax_rows(rows, terms, call.context);
  });
}

namespace {

constexpr int kDotThreads = 256, kColumns = 32, kRowWarps = 32;

template <class T>
__global__ void __launch_bounds__(kDotThreads)
    softmax_dots_kernel(const __grid_constant__ SoftmaxBiasBackward<T> call, compute_t<T>* dots) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  const T *dy = call.dy + row * call.dy_stride, *y = call.y + row * call.y_stride;
  compute_t<T> sum = 0;
  for (int64_t i = threadIdx.x; i < call.cols; i += kDotThreads) sum += to_compute(dy[i]) * to_compute(y[i]);
  sum = block_sum<kDotThreads>(sum);
  if (threadIdx.x == 0) dots[row] = sum;
}

// S: the dtype of the bias.
template <class T, class S>
__global__ void __launch_bounds__(kColumns* kRowWarps)
    softmax_dbias_kernel(const __grid_constant__ SoftmaxBiasBackward<T> call, const compute_t<T>* dots,
                         const int64_t blocks) {
  using A = compute_t<T>;
  begin_kernel();
  const int lane = threadIdx.x % kColumns, warp = threadIdx.x / kColumns;
  const int64_t place = blockIdx.x / blocks * call.bias_cols, column = blockIdx.x % blocks * kColumns + lane;
  const int64_t end = call.bias.has_columns() ? min(column + 1, call.cols) : call.cols;
  A sum = 0;
  for (int64_t n = warp; n < call.sharing_rows; n += kRowWarps) {
    const int64_t row = call.bias.row_at(place, n);
    for (int64_t i = column; i < end; i += kColumns) sum += call.term(row, i, dots[row]);
  }
  if (!call.bias.has_columns())
    for (int offset = kColumns / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  __shared__ A sums[kRowWarps][kColumns + 1];
  sums[warp][lane] = sum;
  for (int half = kRowWarps / 2; half > 0; half /= 2) {
    __syncthreads();
    if (warp < half) sums[warp][lane] += sums[warp + half][lane];
  }
  if (warp == 0 && column < call.bias_cols)
    static_cast<S*>(call.dbias)[place + column] = from_compute<S>(static_cast<compute_t<S>>(sums[0][lane]));
}

}  // namespace
}  // namespace cuda

Status softmax_bias_backward_cuda(const Call& arguments) {
  return dispatch(arguments.inputs[input_of(kSoftmaxBiasBackward, "y")]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const SoftmaxBiasBackward<T> call(arguments);
    auto* const dots = static_cast<compute_t<T>*>(arguments.workspace);
    FUSEDOPS_TRY(
        cuda::launch(arguments.context, cuda::softmax_dots_kernel<T>, call.rows, cuda::kDotThreads, call, dots));
    const int64_t blocks = (call.bias_cols + cuda::kColumns - 1) / cuda::kColumns;
    const auto kernel = call.bias.is_f32() ? cuda::softmax_dbias_kernel<T, float> : cuda::softmax_dbias_kernel<T, T>;
    return cuda::launch(arguments.context, kernel, call.bias_rows * blocks, cuda::kColumns * cuda::kRowWarps, call,
                        static_cast<const compute_t<T>*>(dots), blocks);
  });
}

}  // namespace fusedops
