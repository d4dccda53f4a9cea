#include "ops/elementwise/axpby.h"

#include "core/cpu/elementwise.h"
#include "core/cpu/sum.h"
#include "ops/elementwise/scale.h"

namespace fusedops {
namespace {

Status axpby_cpu(const Call& call) {
  return cpu::elementwise<kAxpby>(call, Axpby{scalar(call, input_of(kAxpby, "a"))});
}

Status backward_rule(Rule& rule) {
  constexpr int kA = input_of(kAxpbyBackward, "a"), kX = input_of(kAxpbyBackward, "x");
  FUSEDOPS_TRY(rule.floating(kX));
  FUSEDOPS_TRY(rule.one_element(kA, kX));
  FUSEDOPS_TRY(rule.same_as(input_of(kAxpbyBackward, "dy"), kX));
  const Shape &a = rule.inputs[kA], &x = rule.inputs[kX];
  const bool need_dx = rule.attributes[attribute_of<bool>(kAxpbyBackward, "need_dx")];
  rule.outputs[output_of(kAxpbyBackward, "da")] = a.present ? a : Shape::of(compute_dtype(x.dtype));
  rule.outputs[output_of(kAxpbyBackward, "dx")] = rule.gradient(kX, need_dx, kX);
  return {};
}

// One partial sum per block of the CPU engine; the tiles of the CUDA kernel are larger.
size_t backward_workspace(const Call& call) {
  const View& x = *call.inputs[input_of(kAxpbyBackward, "x")];
  return (x.numel() / cpu::kBlock + 1) * size_of(compute_dtype(x.dtype));
}

template <class T>
Status backward_cpu(const AxpbyBackward<T>& call, const Context& context) {
  using A = compute_t<T>;
  const auto times_a = Scale{call.a}.prepared<T>();
  const int64_t blocks = (call.n + cpu::kBlock - 1) / cpu::kBlock;
  const bool streamed = cpu::is_streamed(call.n * sizeof(T));
  context.parallel_for(blocks, 300, [&](int64_t begin, int64_t end) {
    A dy_buffer[cpu::kBlock], x_buffer[cpu::kBlock];
    for (int64_t block = begin; block < end; ++block) {
      const int64_t start = block * cpu::kBlock, size = std::min(cpu::kBlock, call.n - start);
      const A* dy = cpu::widened(call.dy + start, dy_buffer, size);
      const A* x = cpu::widened(call.x + start, x_buffer, size);
      call.partials[block] = cpu::interleaved_sum<A>(size, [=](int64_t i) { return dy[i] * x[i]; });
      if (!call.dx) continue;
      T buffer[cpu::kBlock];
      cpu::apply_block(times_a, size, streamed ? buffer : call.dx + start, call.dy + start);
      if (streamed) cpu::stream(buffer, call.dx + start, size);
    }
    if (streamed) cpu::finish_streaming();
  });
  const A sum = cpu::pairwise_sum(call.partials, blocks);
  if (call.da.dtype == DType::f32)
    *static_cast<float*>(call.da.data) = static_cast<float>(sum);
  else
    *static_cast<T*>(call.da.data) = from_compute<T>(sum);
  return {};
}

Status axpby_backward_cpu(const Call& call) {
  return dispatch(call.inputs[input_of(kAxpbyBackward, "x")]->dtype, [&](auto tag) {
    return backward_cpu(AxpbyBackward<typename decltype(tag)::type>(call), call.context);
  });
}

}  // namespace

Operator axpby() {
  return {kAxpby,
          {.derivative = {{.op = "axpby_backward",
                           .inputs = {"dy", "a", "x"},
                           .gradients = {{"a", "da"}, {"x", "dx"}},
                           .if_wanted = "a"},
                          {.op = "scale", .inputs = {"dy", "a"}, .gradients = {{"x", "y"}}},
                          {.gradients = {{"b", "dy"}}}},
           .rule = elementwise_rule<kAxpby>,
           .cpu = axpby_cpu,
           .cuda = axpby_cuda}};
}

Operator axpby_backward() {
  return {
      kAxpbyBackward,
      {.rule = backward_rule, .workspace = backward_workspace, .cpu = axpby_backward_cpu, .cuda = axpby_backward_cuda}};
}

}  // namespace fusedops
