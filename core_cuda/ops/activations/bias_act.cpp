// Limit: arithmetic, about 20 operations per element; memory for relu and identity.
#include "ops/activations/bias_act.h"

#include "core/cpu/float8.h"
#include "core/cpu/row_blocks.h"
#include "core/cpu/sum.h"

namespace fusedops {
namespace {

using cpu::kBlock;

constexpr int64_t kCost = 400;  // nanoseconds per kBlock elements

Status forward_rule(Rule& rule) {
  constexpr int kX = input_of(kBiasAct, "x"), kBias = input_of(kBiasAct, "bias");
  FUSEDOPS_TRY(rule.inputs[kBias].present ? rule.has_rows(kX) : rule.floating(kX));
  FUSEDOPS_TRY(rule.per_column(kBias, kX));
  rule.outputs[output_of(kBiasAct, "y")] = rule.inputs[kX];
  return {};
}

Status float8_forward_rule(Rule& rule) {
  constexpr int kX = input_of(kBiasActFloat8, "x");
  FUSEDOPS_TRY(rule.has_rows(kX));
  FUSEDOPS_TRY(rule.per_column(input_of(kBiasActFloat8, "bias"), kX));
  return float8_rule(rule, float8_places(kBiasActFloat8), rule.inputs[kX], kX);
}

Status backward_rule(Rule& rule) {
  constexpr int kX = input_of(kBiasActBackward, "x"), kBias = input_of(kBiasActBackward, "bias");
  FUSEDOPS_TRY(rule.inputs[kBias].present ? rule.has_rows(kX) : rule.floating(kX));
  FUSEDOPS_TRY(rule.same_as(input_of(kBiasActBackward, "dy"), kX));
  FUSEDOPS_TRY(rule.per_column(kBias, kX));
  const bool need_dx = rule.attributes[attribute_of<bool>(kBiasActBackward, "need_dx")];
  const bool need_dbias = rule.attributes[attribute_of<bool>(kBiasActBackward, "need_dbias")];
  rule.outputs[output_of(kBiasActBackward, "dx")] = rule.gradient(kX, need_dx, kX);
  rule.outputs[output_of(kBiasActBackward, "dbias")] = rule.gradient(kBias, need_dbias, kX);
  return {};
}

size_t backward_workspace(const Call& call) {
  const BiasActBackward<float> backward(call);  // shapes only
  if (!backward.need_dbias) return 0;
  const DType dtype = call.inputs[input_of(kBiasActBackward, "x")]->dtype;
  return backward.chunks.count * backward.size * size_of(compute_dtype(dtype));
}

// Elements [column, column + n) of the bias, in the compute type.
template <class T, class A = compute_t<T>>
const A* bias_block(const Parameter& bias, int64_t column, int64_t n, A* buffer) {
  if (!bias.data) {
    std::fill_n(buffer, n, kNoBias<T>);
    return buffer;
  }
  if constexpr (!std::is_same_v<T, A>)
    if (!bias.is_f32) return cpu::widened(static_cast<const T*>(bias.data) + column, buffer, n);
  return static_cast<const A*>(bias.data) + column;
}

// Contiguous short rows are computed several at a time, with repeated copies of the bias.
template <class A>
struct RepeatedBias {
  A values[kBlock];
  int64_t rows = 1;  // number of copies

  template <class T>
  void repeat(const BiasAct<T>& call) {
    if (!call.bias.data || call.x_stride != call.size || call.size == 0) return;
    rows = std::max<int64_t>(1, std::min(kBlock / call.size, call.rows));
    if (rows == 1) return;
    for (int64_t i = 0; i < rows * call.size; ++i) values[i] = call.bias.template get<T>(i % call.size);
  }
};

template <class Activation, class T, class A = compute_t<T>>
void forward(const BiasAct<T>& call, const Context& context) {
  const bool streamed = cpu::is_streamed(call.rows * call.size * sizeof(T));
  const auto act = [](A x, A bias) { return Activation::at(x + bias).value; };
  RepeatedBias<A> repeated;
  repeated.repeat(call);
  if (repeated.rows > 1) {
    const int64_t width = repeated.rows * call.size, total = call.rows * call.size;
    cpu::for_row_blocks(context, (total + width - 1) / width, width, kCost, [&](int64_t i, int64_t, int64_t) {
      const int64_t at = i * width;
      cpu::apply(act, streamed, std::min(width, total - at), call.y + at, call.x + at, repeated.values);
    });
    return;
  }
  cpu::for_row_blocks(context, call.rows, call.size, kCost, [&](int64_t row, int64_t column, int64_t n) {
    A buffer[kBlock];
    const A* bias = bias_block<T>(call.bias, column, n, buffer);
    cpu::apply(act, streamed, n, call.y + row * call.size + column, call.x + row * call.x_stride + column, bias);
  });
}

template <class Activation, class T, class A = compute_t<T>>
void float8_forward(const BiasAct<T>& call, const Float8Result<A>& out, const Context& context) {
  const auto act = [](A x, A bias) { return Activation::at(x + bias).value; };
  cpu::quantize_rows(context, out, call.rows, kCost, [&](int64_t row, int64_t start, int64_t n, A* to) {
    A x[kBlock], bias[kBlock];
    cpu::apply_block(act, n, to, cpu::widened(call.x + row * call.x_stride + start, x, n),
                     bias_block<T>(call.bias, start, n, bias));
  });
}

// Computes dx of a block. Its unrounded values remain in `results`.
template <class Activation, class T, class A = compute_t<T>>
void backward_block(const BiasActBackward<T>& call, int64_t row, int64_t column, int64_t n, const A* bias,
                    cpu::Results<T>& results) {
  A dy_buffer[kBlock], x_buffer[kBlock], *dx = results.data();
  const A* dy = cpu::widened(call.dy + row * call.dy_stride + column, dy_buffer, n);
  const A* x = cpu::widened(call.x + row * call.x_stride + column, x_buffer, n);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i)
    dx[i] = activations::apply_slope<Activation>(dy[i], Activation::at(x[i] + bias[i]).slope);
  results.keep(n);
}

template <class Activation, class T, class A = compute_t<T>>
Status backward(const BiasActBackward<T>& call, const Context& context) {
  const bool streamed = cpu::is_streamed(call.rows * call.size * sizeof(T));
  const auto results_of = [&](int64_t row, int64_t column) {
    return cpu::Results<T>(call.dx ? call.dx + row * call.size + column : nullptr, streamed);
  };
  if (!call.need_dbias) {
    if (!call.dx) return {};
    cpu::for_row_blocks(context, call.rows, call.size, kCost, [&](int64_t row, int64_t column, int64_t n) {
      A buffer[kBlock];
      auto results = results_of(row, column);
      backward_block<Activation>(call, row, column, n, bias_block<T>(call.bias, column, n, buffer), results);
      if (streamed) cpu::finish_streaming();
    });
    return {};
  }
  const int64_t chunk_cost = kCost * std::max<int64_t>(1, call.chunks.rows);
  cpu::for_row_blocks(context, call.chunks.count, call.size, chunk_cost, [&](int64_t chunk, int64_t column, int64_t n) {
    A buffer[kBlock], sums[kBlock] = {};
    const A* bias = bias_block<T>(call.bias, column, n, buffer);
    const int64_t first = chunk * call.chunks.rows, last = std::min(first + call.chunks.rows, call.rows);
    for (int64_t row = first; row < last; ++row) {
      auto results = results_of(row, column);
      backward_block<Activation>(call, row, column, n, bias, results);
      const A* dx = results.data();
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) sums[i] += dx[i];
    }
    std::copy_n(sums, n, call.partials + chunk * call.size + column);
    if (streamed) cpu::finish_streaming();
  });
  return cpu::sum_partials(context, call.partials, call.chunks.count, call.size, call.dbias);
}

Status forward_cpu(const Call& call) {
  return dispatch(call.outputs[output_of(kBiasAct, "y")].dtype, [&](auto tag) -> Status {
    const auto of_type = bias_act_of<kBiasAct, typename decltype(tag)::type>(call);
    activations::dispatch(of_type.activation,
                          [&](auto activation) { forward<decltype(activation)>(of_type, call.context); });
    return {};
  });
}

Status float8_forward_cpu(const Call& call) {
  return dispatch(call.inputs[input_of(kBiasActFloat8, "x")]->dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    const BiasAct<T> of_type = bias_act_of<kBiasActFloat8, T>(call);
    const Float8Result<compute_t<T>> out(call, float8_places(kBiasActFloat8), of_type.size, call.workspace);
    activations::dispatch(of_type.activation,
                          [&](auto activation) { float8_forward<decltype(activation)>(of_type, out, call.context); });
    return {};
  });
}

Status backward_cpu(const Call& call) {
  return dispatch(call.inputs[input_of(kBiasActBackward, "x")]->dtype, [&](auto tag) -> Status {
    const BiasActBackward<typename decltype(tag)::type> of_type(call);
    return activations::dispatch(of_type.activation, [&](auto activation) -> Status {
      return backward<decltype(activation)>(of_type, call.context);
    });
  });
}

}  // namespace

Operator bias_act() {
  return with_backward(kBiasAct, kBiasActBackward, {.rule = forward_rule, .cpu = forward_cpu, .cuda = bias_act_cuda});
}

Operator bias_act_float8() {
  return {kBiasActFloat8,
          {.rule = float8_forward_rule,
           .workspace = [](const Call&) { return kLargestBytes; },
           .cpu = float8_forward_cpu,
           .cuda = bias_act_float8_cuda,
           .rounds_to_8_bits = true}};
}

Operator bias_act_backward() {
  return {
      kBiasActBackward,
      {.rule = backward_rule, .workspace = backward_workspace, .cpu = backward_cpu, .cuda = bias_act_backward_cuda}};
}

}  // namespace fusedops
