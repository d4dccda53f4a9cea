#include "core/cuda/reduce.cuh"
#include "core/cuda/rounding.cuh"
#include "ops/activations/activation_rows.cuh"
#include "ops/activations/bias_act.h"

namespace fusedops {
namespace cuda {
namespace {

template <class T>
struct BiasActKernel {
  static constexpr int kBlockThreads = kThreads;
  BiasAct<T> call;

  template <class Activation, int kWidth>
  __device__ void run(int64_t row, int64_t column, int64_t count) const {
    compute_t<T> x[kWidth], bias[kWidth];
    load_elements<kWidth>(call.x + row * call.x_stride + column, count, x);
    load_elements<kWidth, T>(call.bias, column, count, kNoBias<T>, bias);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] = Activation::at(sum(x[i], bias[i])).value;
    store_elements<kWidth>(x, call.y + row * call.size + column, count);
  }
};

// Multiplies dy by the slope: dx in place of dy.
template <class Activation, int kWidth, class A>
__device__ void apply_slopes(A (&dy)[kWidth], const A (&x)[kWidth], const A (&bias)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    dy[i] = activations::apply_slope<Activation>(dy[i], Activation::at(sum(x[i], bias[i])).slope);
}

template <class T>
struct BiasActBackwardKernel {
  static constexpr int kBlockThreads = kThreads;
  BiasActBackward<T> call;

  template <class Activation, int kWidth>
  __device__ void run(int64_t row, int64_t column, int64_t count) const {
    compute_t<T> dy[kWidth], x[kWidth], bias[kWidth];
    load_elements<kWidth>(call.dy + row * call.dy_stride + column, count, dy);
    load_elements<kWidth>(call.x + row * call.x_stride + column, count, x);
    load_elements<kWidth, T>(call.bias, column, count, kNoBias<T>, bias);
    apply_slopes<Activation>(dy, x, bias);
    store_elements<kWidth>(dy, call.dx + row * call.size + column, count);
  }
};

// kWidth elements as stored, which take fewer registers until they are needed.
template <int kWidth, class T>
struct Raw {
  T values[1];

  __device__ void load(const T* from, int64_t) { values[0] = *from; }
  __device__ void widen(compute_t<T> (&to)[1]) const { to[0] = to_compute(values[0]); }
};

template <int kWidth, class T>
  requires(kWidth > 1)
struct Raw<kWidth, T> {
  Pack<T> pack;

  __device__ void load(const T* from, int64_t count) { pack = load_pack<true>(from, count); }
  __device__ void widen(compute_t<T> (&to)[kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[i] = element(pack, i);
  }
};

// dx, and the sums of its columns over a row chunk. A thread walks down kWidth columns with the loads of several rows
// in flight. The row argument of run() is the chunk.
template <class T>
struct BiasActChunkKernel {
  static constexpr int kBlockThreads = 128;  // small, so that few rows fill the GPU
  BiasActBackward<T> call;

  template <class Activation, int kWidth>
  __device__ void run(int64_t chunk, int64_t column, int64_t count) const {
    // The identity reads dy only, for twice as many rows at a time.
    constexpr int kAhead = std::is_same_v<Activation, activations::Identity> ? 8 : 4;
    using A = compute_t<T>;
    A bias[kWidth], sums[kWidth] = {};
    load_elements<kWidth, T>(call.bias, column, count, kNoBias<T>, bias);
    const int64_t first = chunk * call.chunks.rows;
    const int rows = static_cast<int>(call.chunks.rows < call.rows - first ? call.chunks.rows : call.rows - first);
    const T* dys = call.dy + first * call.dy_stride + column;
    const T* xs = call.x + first * call.x_stride + column;
    T* dxs = call.dx + first * call.size + column;
    for (int start = 0; start < rows; start += kAhead) {
      Raw<kWidth, T> raw_dy[kAhead], raw_x[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (start + k >= rows) break;
        raw_dy[k].load(dys + k * call.dy_stride, count);
        raw_x[k].load(xs + k * call.x_stride, count);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (start + k >= rows) break;
        A dy[kWidth], x[kWidth];
        raw_dy[k].widen(dy);
        raw_x[k].widen(x);
        apply_slopes<Activation>(dy, x, bias);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sums[i] = sum(sums[i], dy[i]);
        if (call.dx) store_elements<kWidth>(dy, dxs + k * call.size, count);
      }
      dys += kAhead * call.dy_stride;
      xs += kAhead * call.x_stride;
      dxs += kAhead * call.size;
    }
    A* partials = call.partials + chunk * call.size + column;
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      if (i < count) partials[i] = sums[i];
  }
};

// The bias is read in whole packs. A single row, however, need not end with a whole pack.
template <class T>
bool is_bias_aligned(const Parameter& bias, int64_t size) {
  return !bias.data || (is_aligned(bias.data) && size % kPackSize<T> == 0);
}

template <class T>
Status forward(const BiasAct<T>& call, const Context& context) {
  const bool aligned = is_row_aligned(call.rows, call.size, call.x, call.x_stride) &&
                       is_row_aligned(call.rows, call.size, call.y, call.size) &&
                       is_bias_aligned<T>(call.bias, call.size);
  return run_rows<kPackSize<T>>(context, BiasActKernel<T>{call}, call.activation, call.rows, call.size, aligned);
}

template <class T>
Status backward(const BiasActBackward<T>& call, const Context& context) {
  const auto aligned = [&](const T* data, int64_t stride) {
    return is_row_aligned(call.rows, call.size, data, stride);
  };
  const bool all_aligned = aligned(call.dy, call.dy_stride) && aligned(call.x, call.x_stride) &&
                           aligned(call.dx, call.size) && is_bias_aligned<T>(call.bias, call.size);
  if (!call.need_dbias) {
    if (!call.dx) return {};
    return run_rows<kPackSize<T>>(context, BiasActBackwardKernel<T>{call}, call.activation, call.rows, call.size,
                                  all_aligned);
  }
  FUSEDOPS_TRY(run_rows<kPackSize<T>>(context, BiasActChunkKernel<T>{call}, call.activation, call.chunks.count,
                                      call.size, all_aligned));
  return sum_row_chunks(context, call.partials, call.chunks.count, call.size, call.dbias);
}

}  // namespace
}  // namespace cuda

Status bias_act_cuda(const Call& call) {
  return dispatch(call.outputs[output_of(kBiasAct, "y")].dtype, [&](auto tag) {
    return cuda::forward(bias_act_of<kBiasAct, typename decltype(tag)::type>(call), call.context);
  });
}

Status bias_act_backward_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kBiasActBackward, "x")]->dtype, [&](auto tag) {
    return cuda::backward(BiasActBackward<typename decltype(tag)::type>(call), call.context);
  });
}

}  // namespace fusedops
