#include "ops/activations/activation_rows.cuh"
#include "ops/activations/gated_act.h"

namespace fusedops {
namespace cuda {
namespace {

template <class T>
struct GatedActKernel {
  static constexpr int kBlockThreads = kThreads;
  GatedAct<T> call;

  template <class Activation, int kWidth>
  __device__ void run(int64_t row, int64_t column, int64_t count) const {
    compute_t<T> gate[kWidth], up[kWidth];
    load_elements<kWidth>(call.gate + row * call.gate_stride + column, count, gate);
    load_elements<kWidth>(call.up + row * call.up_stride + column, count, up);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) gate[i] = Activation::at(gate[i]).value * up[i];
    store_elements<kWidth>(gate, call.y + row * call.size + column, count);
  }
};

// Reads dy, gate and up once and writes both gradients. Limit: memory bandwidth, for five tensors.
template <class T>
struct GatedActBackwardKernel {
  static constexpr int kBlockThreads = kThreads;
  GatedActBackward<T> call;

  template <class Activation, int kWidth>
  __device__ void run(int64_t row, int64_t column, int64_t count) const {
    compute_t<T> dy[kWidth], gate[kWidth], up[kWidth];
    load_elements<kWidth>(call.dy + row * call.dy_stride + column, count, dy);
    load_elements<kWidth>(call.gate + row * call.gate_stride + column, count, gate);
    load_elements<kWidth>(call.up + row * call.up_stride + column, count, up);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const Activated<compute_t<T>> act = Activation::at(gate[i]);
      gate[i] = activations::apply_slope<Activation>(dy[i] * up[i], act.slope);
      up[i] = dy[i] * act.value;
    }
    const int64_t at = row * call.out_stride + column;
    if (call.dgate) store_elements<kWidth>(gate, call.dgate + at, count);
    if (call.dup) store_elements<kWidth>(up, call.dup + at, count);
  }
};

template <class T>
Status forward(const GatedAct<T>& call, const Context& context) {
  const auto aligned = [&](const T* data, int64_t stride) {
    return is_row_aligned(call.rows, call.size, data, stride);
  };
  return run_rows<kPackSize<T>>(
      context, GatedActKernel<T>{call}, call.activation, call.rows, call.size,
      aligned(call.gate, call.gate_stride) && aligned(call.up, call.up_stride) && aligned(call.y, call.size));
}

template <class T>
Status backward(const GatedActBackward<T>& call, const Context& context) {
  if (!call.dgate && !call.dup) return {};
  const auto aligned = [&](const T* data, int64_t stride) {
    return is_row_aligned(call.rows, call.size, data, stride);
  };
  return run_rows<kPackSize<T>>(context, GatedActBackwardKernel<T>{call}, call.activation, call.rows, call.size,
                                aligned(call.dy, call.dy_stride) && aligned(call.gate, call.gate_stride) &&
                                    aligned(call.up, call.up_stride) && aligned(call.dgate, call.out_stride) &&
                                    aligned(call.dup, call.out_stride));
}

}  // namespace
}  // namespace cuda

Status gated_act_cuda(const Call& call) {
  return dispatch(call.outputs[output_of(kGatedAct, "y")].dtype, [&](auto tag) {
    return cuda::forward(gated_act_of<kGatedAct, typename decltype(tag)::type>(call), call.context);
  });
}

Status gated_act_backward_cuda(const Call& call) {
  return dispatch(call.inputs[input_of(kGatedActBackward, "gate")]->dtype, [&](auto tag) {
    return cuda::backward(GatedActBackward<typename decltype(tag)::type>(call), call.context);
  });
}

}  // namespace fusedops
