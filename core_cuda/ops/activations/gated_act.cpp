// Limit: arithmetic, about 20 operations per element; memory for relu and identity.
#include "ops/activations/gated_act.h"

#include "core/cpu/float8.h"
#include "core/cpu/row_blocks.h"

namespace fusedops {
namespace {

using cpu::kBlock;

constexpr int64_t kCost = 400;  // nanoseconds per kBlock elements

// Checks gate and up, and returns the shape of the result: that of gate or of its halves.
Status gated_shape(Rule& rule, int gate, int up, Shape* y) {
  const bool packed = !rule.inputs[up].present;
  FUSEDOPS_TRY(packed ? rule.has_rows(gate) : rule.floating(gate));
  if (!packed) FUSEDOPS_TRY(rule.same_as(up, gate));
  *y = rule.inputs[gate];
  if (!packed || !y->ranked) return {};
  Dim& last = y->dims[y->rank - 1];
  if (last >= 0 && last % 2 != 0)
    return rule.must(gate, "have an even last dimension, as it holds up as well", "shape " + rule.show(*y));
  last = rule.half(last);
  return {};
}

Status forward_rule(Rule& rule) {
  return gated_shape(rule, input_of(kGatedAct, "gate"), input_of(kGatedAct, "up"),
                     &rule.outputs[output_of(kGatedAct, "y")]);
}

Status float8_forward_rule(Rule& rule) {
  constexpr int kGate = input_of(kGatedActFloat8, "gate");
  FUSEDOPS_TRY(rule.has_rows(kGate));
  Shape y;
  FUSEDOPS_TRY(gated_shape(rule, kGate, input_of(kGatedActFloat8, "up"), &y));
  return float8_rule(rule, float8_places(kGatedActFloat8), y, kGate);
}

Status backward_rule(Rule& rule) {
  constexpr int kDy = input_of(kGatedActBackward, "dy"), kGate = input_of(kGatedActBackward, "gate");
  constexpr int kUp = input_of(kGatedActBackward, "up");
  Shape y;
  FUSEDOPS_TRY(gated_shape(rule, kGate, kUp, &y));
  const Shape& dy = rule.inputs[kDy];
  FUSEDOPS_TRY(rule.same_dtype(kDy, kGate));
  if (!rule.same_shape(y, dy)) return rule.must(kDy, "have shape " + rule.show(y), rule.show(dy));
  const bool need_dgate = rule.attributes[attribute_of<bool>(kGatedActBackward, "need_dgate")];
  const bool need_dup = rule.inputs[kUp].present && rule.attributes[attribute_of<bool>(kGatedActBackward, "need_dup")];
  rule.outputs[output_of(kGatedActBackward, "dgate")] = rule.gradient(kGate, need_dgate, kGate);
  rule.outputs[output_of(kGatedActBackward, "dup")] = rule.gradient(kGate, need_dup, kGate);
  return {};
}

template <class Activation, class T, class A = compute_t<T>>
void forward(const GatedAct<T>& call, const Context& context) {
  const bool streamed = cpu::is_streamed(call.rows * call.size * sizeof(T));
  const auto product = [](A gate, A up) { return Activation::at(gate).value * up; };
  cpu::for_row_blocks(context, call.rows, call.size, kCost, [&](int64_t row, int64_t column, int64_t n) {
    cpu::apply(product, streamed, n, call.y + row * call.size + column, call.gate + row * call.gate_stride + column,
               call.up + row * call.up_stride + column);
  });
}

template <class Activation, class T, class A = compute_t<T>>
void float8_forward(const GatedAct<T>& call, const Float8Result<A>& out, const Context& context) {
  const auto product = [](A gate, A up) { return Activation::at(gate).value * up; };
  cpu::quantize_rows(context, out, call.rows, kCost, [&](int64_t row, int64_t start, int64_t n, A* to) {
    A gate[kBlock], up[kBlock];
    cpu::apply_block(product, n, to, cpu::widened(call.gate + row * call.gate_stride + start, gate, n),
                     cpu::widened(call.up + row * call.up_stride + start, up, n));
  });
}

template <class Activation, class T, class A = compute_t<T>>
void backward(const GatedActBackward<T>& call, const Context& context) {
  const bool streamed = cpu::is_streamed(call.rows * call.size * sizeof(T));
  const auto results_of = [&](T* out, int64_t row, int64_t column) {
    return cpu::Results<T>(out ? out + row * call.out_stride + column : nullptr, streamed);
  };
  cpu::for_row_blocks(context, call.rows, call.size, 2 * kCost, [&](int64_t row, int64_t column, int64_t n) {
    A buffers[3][kBlock];
    const A* dy = cpu::widened(call.dy + row * call.dy_stride + column, buffers[0], n);
    const A* gate = cpu::widened(call.gate + row * call.gate_stride + column, buffers[1], n);
    const A* up = cpu::widened(call.up + row * call.up_stride + column, buffers[2], n);
    auto dgates = results_of(call.dgate, row, column), dups = results_of(call.dup, row, column);
    A *dgate = dgates.data(), *dup = dups.data();
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const Activated<A> act = Activation::at(gate[i]);
      dgate[i] = activations::apply_slope<Activation>(dy[i] * up[i], act.slope);
      dup[i] = dy[i] * act.value;
    }
    dgates.keep(n);
    dups.keep(n);
    if (streamed) cpu::finish_streaming();
  });
}

Status forward_cpu(const Call& call) {
  return dispatch(call.outputs[output_of(kGatedAct, "y")].dtype, [&](auto tag) -> Status {
    const auto of_type = gated_act_of<kGatedAct, typename decltype(tag)::type>(call);
    activations::dispatch(of_type.activation,
                          [&](auto activation) { forward<decltype(activation)>(of_type, call.context); });
    return {};
  });
}

Status float8_forward_cpu(const Call& call) {
  return dispatch(call.inputs[input_of(kGatedActFloat8, "gate")]->dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    const GatedAct<T> of_type = gated_act_of<kGatedActFloat8, T>(call);
    const Float8Result<compute_t<T>> out(call, float8_places(kGatedActFloat8), of_type.size, call.workspace);
    activations::dispatch(of_type.activation,
                          [&](auto activation) { float8_forward<decltype(activation)>(of_type, out, call.context); });
    return {};
  });
}

Status backward_cpu(const Call& call) {
  return dispatch(call.inputs[input_of(kGatedActBackward, "gate")]->dtype, [&](auto tag) -> Status {
    const GatedActBackward<typename decltype(tag)::type> of_type(call);
    if (!of_type.dgate && !of_type.dup) return {};
    activations::dispatch(of_type.activation,
                          [&](auto activation) { backward<decltype(activation)>(of_type, call.context); });
    return {};
  });
}

}  // namespace

Operator gated_act() {
  return with_backward(kGatedAct, kGatedActBackward,
                       {.rule = forward_rule, .cpu = forward_cpu, .cuda = gated_act_cuda});
}

Operator gated_act_float8() {
  return {kGatedActFloat8,
          {.rule = float8_forward_rule,
           .workspace = [](const Call&) { return kLargestBytes; },
           .cpu = float8_forward_cpu,
           .cuda = gated_act_float8_cuda,
           .rounds_to_8_bits = true}};
}

Operator gated_act_backward() {
  return {kGatedActBackward, {.rule = backward_rule, .cpu = backward_cpu, .cuda = gated_act_backward_cuda}};
}

}  // namespace fusedops
