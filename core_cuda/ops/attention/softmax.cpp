#include "ops/attention/softmax.h"

#include "core/cpu/elementwise.h"
#include "core/cpu/exp_sum.h"
#include "core/cpu/sum.h"
#include "core/cpu/widest.h"

namespace fusedops {
namespace {

Status check_mask(Rule& rule) {
  constexpr int kMask = input_of(kSoftmax, "mask");
  const Shape &x = rule.inputs[input_of(kSoftmax, "x")], &mask = rule.inputs[kMask];
  if (!mask.present) return {};
  FUSEDOPS_TRY(check_mask_dtype(rule, kMask));
  if (!mask.ranked || !x.ranked) return {};
  bool fits = mask.rank <= x.rank;
  for (int i = 1; fits && i <= mask.rank; ++i) {
    const Dim size = mask.dims[mask.rank - i], of_x = x.dims[x.rank - i];
    fits = size == 1 || size == of_x || size < 0 || of_x < 0;  // unknown dimensions are checked once they are known
  }
  if (fits) return {};
  return rule.must(kMask, "be broadcastable to x's shape, " + rule.show(x), rule.show(mask));
}

Status forward_rule(Rule& rule) {
  constexpr int kX = input_of(kSoftmax, "x");
  const Shape& x = rule.inputs[kX];
  FUSEDOPS_TRY(rule.has_rows(kX));
  if (rule.attributes[attribute_of<bool>(kSoftmax, "causal")] && x.ranked && x.rank < 2)
    return rule.must(kX, "have at least two dimensions to be causal", "shape " + rule.show(x));
  FUSEDOPS_TRY(check_mask(rule));
  rule.outputs[output_of(kSoftmax, "y")] = x;
  return {};
}

// Rows up to this length buffer their exponentials on the stack. Longer rows buffer them in y, or compute them twice if
// the dtype of y is narrower.
constexpr int64_t kMaxBuffered = 4096;

// One row. `mask` may be null.
template <class T>
void softmax_row(const Softmax<T>& call, int64_t row, const uint8_t* mask, bool streamed) {
  using A = compute_t<T>;
  const T* x = call.x + row * call.x_stride;
  T* y = call.y + row * call.cols;
  const int64_t end = call.end(row);
  const A sign = call.sign, factor = call.factor;

  const auto block = [=](int64_t start, int64_t size, A* buffer) -> const A* {
    const A* wide = cpu::widened(x + start, buffer, size);
    if (!mask && sign == 1) return wide;
    if (mask) {
#pragma GCC ivdep
      for (int64_t i = 0; i < size; ++i)
        buffer[i] = cpu::kept_or(sign * wide[i], -std::numeric_limits<A>::infinity(), mask[start + i]);
    } else {
      for (int64_t i = 0; i < size; ++i) buffer[i] = sign * wide[i];
    }
    return buffer;
  };
  A stack[kMaxBuffered];
  A* terms = end <= kMaxBuffered ? stack : nullptr;
  if constexpr (std::is_same_v<T, A>)
    if (!terms) terms = y, streamed = false;  // y is in the cache, so that streaming stores gain nothing
  const auto [max, sum] = cpu::exp_sum(end, factor, terms, block);
  const A reciprocal = 1 / sum;
  const auto of_term = [=](A term) { return term * reciprocal; };
  const auto of_value = [=, max = max](A v) { return cpu::scaled_exp2((v - max) * factor) * reciprocal; };

  A buffer[cpu::kBlock];
  for (int64_t start = 0; start < end; start += cpu::kBlock) {
    const int64_t size = std::min(cpu::kBlock, end - start);
    if (terms)
      cpu::apply(of_term, streamed, size, y + start, terms + start);
    else
      cpu::apply(of_value, streamed, size, y + start, block(start, size, buffer));
    if (!mask) continue;
    // Masked elements are zero even in a row of NaN.
#pragma GCC ivdep
    for (int64_t i = start; i < start + size; ++i) y[i] = cpu::kept_or(y[i], T{}, mask[i]);
  }
  std::fill(y + end, y + call.cols, T{});
}

template <class T>
Status softmax_rows(const Call& arguments) {
  const Softmax<T> call(arguments);
  const View* view = arguments.inputs[input_of(kSoftmax, "mask")];
  const BroadcastMask mask = view ? BroadcastMask(*view, *arguments.inputs[input_of(kSoftmax, "x")]) : BroadcastMask();
  const bool streamed = !view && cpu::is_streamed(call.rows * call.cols * sizeof(T));
  arguments.context.parallel_for(call.rows, 20 + call.cols, [&](int64_t begin, int64_t end) {
    cpu::run_widest([&] {
      for (int64_t row = begin; row < end; ++row) {
        const uint8_t* mask_row = view ? mask.row(row) : nullptr;
        if (!mask_row || mask.has_columns())
          softmax_row(call, row, mask_row, streamed);
        else if (*mask_row)  // one bool for the row
          softmax_row(call, row, nullptr, streamed);
        else
          std::fill_n(call.y + row * call.cols, call.cols, T{});
      }
    });
  });
  return {};
}

Status softmax_cpu(const Call& call) {
  return dispatch(call.outputs[output_of(kSoftmax, "y")].dtype,
                  [&](auto tag) { return softmax_rows<typename decltype(tag)::type>(call); });
}

Status backward_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.has_rows(input_of(kSoftmaxBackward, "y")));
  return elementwise_rule<kSoftmaxBackward>(rule);
}

template <class T>
Status backward_rows(const SoftmaxBackward<T>& call, const Context& context) {
  using A = compute_t<T>;
  const bool streamed = cpu::is_streamed(call.rows * call.cols * sizeof(T));
  context.parallel_for(call.rows, 20 + call.cols / 2, [&](int64_t begin, int64_t end) {
    cpu::run_widest([&] {
      A dy_buffer[cpu::kBlock], y_buffer[cpu::kBlock];
      for (int64_t row = begin; row < end; ++row) {
        const T *dy = call.dy + row * call.dy_stride, *y = call.y + row * call.y_stride;
        A sum = 0;
        for (int64_t start = 0; start < call.cols; start += cpu::kBlock) {
          const int64_t size = std::min(cpu::kBlock, call.cols - start);
          const A* wide_dy = cpu::widened(dy + start, dy_buffer, size);
          const A* wide_y = cpu::widened(y + start, y_buffer, size);
          sum += cpu::interleaved_sum<A>(size, [=](int64_t i) { return wide_dy[i] * wide_y[i]; });
        }
        const auto slope = [=, scale = call.scale](A dy, A y) { return scale * y * (dy - sum); };
        cpu::apply(slope, streamed, call.cols, call.dx + row * call.cols, dy, y);
      }
    });
  });
  return {};
}

Status softmax_backward_cpu(const Call& call) {
  return dispatch(call.outputs[output_of(kSoftmaxBackward, "dx")].dtype, [&](auto tag) {
    return backward_rows(SoftmaxBackward<typename decltype(tag)::type>(call), call.context);
  });
}

}  // namespace

Operator softmax() {
  return {kSoftmax,
          {.derivative = {{.op = "softmax_backward", .inputs = {"dy", "y"}, .gradients = {{"x", "dx"}}}},
           .rule = forward_rule,
           .cpu = softmax_cpu,
           .cuda = softmax_cuda}};
}

Operator softmax_backward() {
  return {kSoftmaxBackward, {.rule = backward_rule, .cpu = softmax_backward_cpu, .cuda = softmax_backward_cuda}};
}

}  // namespace fusedops
