#include "ops/attention/softmax.h"

#include "core/cpu/elementwise.h"
#include "core/cpu/exp_sum.h"
#include "core/cpu/sum.h"
#include "core/cpu/widest.h"

namespace fusedops {
namespace {

Status check_broadcast_to_x(const Rule& rule, int input, int x) {
  const Shape& shape = rule.inputs[x];
  return check_broadcast(rule, input, shape, std::string(rule.input_name(x)) + "'s shape, " + rule.show(shape));
}

Status check_bias(const Rule& rule, int input, int x) {
  FUSEDOPS_TRY(rule.inputs[x].dtype == DType::f32 ? rule.same_dtype(input, x) : rule.same_dtype_or_f32(input, x));
  return check_broadcast_to_x(rule, input, x);
}

Status forward_rule(Rule& rule) {
  constexpr int kX = input_of(kSoftmax, "x");
  const Shape& x = rule.inputs[kX];
  FUSEDOPS_TRY(rule.has_rows(kX));
  if (rule.attributes[attribute_of<bool>(kSoftmax, "causal")] && x.ranked && x.rank < 2)
    return rule.must(kX, "have at least two dimensions to be causal", "shape " + rule.show(x));
  constexpr int kMask = input_of(kSoftmax, "mask"), kBias = input_of(kSoftmax, "bias");
  if (rule.inputs[kMask].present) {
    FUSEDOPS_TRY(check_mask_dtype(rule, kMask));
    FUSEDOPS_TRY(check_broadcast_to_x(rule, kMask, kX));
  }
  if (rule.inputs[kBias].present) FUSEDOPS_TRY(check_bias(rule, kBias, kX));
  rule.outputs[output_of(kSoftmax, "y")] = x;
  return {};
}

// Rows up to this length buffer their exponentials on the stack. Longer rows buffer them in y, or compute them twice if
// the dtype of y is narrower.
constexpr int64_t kMaxBuffered = 4096;

// One row. `mask` may be null.
template <class T>
void softmax_row(const Softmax<T>& call, int64_t row, const uint8_t* mask, const BroadcastBias& bias, bool streamed) {
  using A = compute_t<T>;
  const T* x = call.x + row * call.x_stride;
  T* y = call.y + row * call.cols;
  const int64_t end = call.end(row);
  const A multiplier = call.multiplier, factor = call.factor;
  constexpr A kNegInf = -std::numeric_limits<A>::infinity();
  const bool has_bias = bias.is_given();
  const int64_t place = has_bias ? bias.place(row) : 0;

  const auto block = [=, &bias](int64_t start, int64_t size, A* buffer) -> const A* {
    const A* wide = cpu::widened(x + start, buffer, size);
    if (!mask && !has_bias && multiplier == 1) return wide;
    if (has_bias) {
      for (int64_t i = 0; i < size; ++i) {
        const A term = bias.at<T>(place, start + i);
        buffer[i] = term == kNegInf ? kNegInf : multiplier * wide[i] + term;
      }
      wide = buffer;
    }
    const A rest = has_bias ? A(1) : multiplier;
    if (mask) {
#pragma GCC ivdep
      for (int64_t i = 0; i < size; ++i) buffer[i] = cpu::kept_or(rest * wide[i], kNegInf, mask[start + i]);
    } else if (!has_bias) {
      for (int64_t i = 0; i < size; ++i) buffer[i] = rest * wide[i];
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
    // Masked elements are zero even in a row of NaN.
    if (has_bias)
      for (int64_t i = start; i < start + size; ++i)
        if (bias.at<T>(place, i) == kNegInf) y[i] = T{};
    if (!mask) continue;
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
  const BroadcastBias bias = softmax_bias(arguments);
  const bool streamed = !view && !bias.is_given() && cpu::is_streamed(call.rows * call.cols * sizeof(T));
  arguments.context.parallel_for(call.rows, 20 + call.cols, [&](int64_t begin, int64_t end) {
    cpu::run_widest([&] {
      for (int64_t row = begin; row < end; ++row) {
        const uint8_t* mask_row = view ? mask.row(row) : nullptr;
        if (!mask_row || mask.has_columns())
          softmax_row(call, row, mask_row, bias, streamed);
        else if (*mask_row)  // one bool for the row
          softmax_row(call, row, nullptr, bias, streamed);
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

Status bias_backward_rule(Rule& rule) {
  constexpr int kDy = input_of(kSoftmaxBiasBackward, "dy"), kY = input_of(kSoftmaxBiasBackward, "y"),
                kBias = input_of(kSoftmaxBiasBackward, "bias");
  FUSEDOPS_TRY(rule.has_rows(kY));
  FUSEDOPS_TRY(rule.same_as(kDy, kY));
  FUSEDOPS_TRY(check_bias(rule, kBias, kY));
  rule.outputs[output_of(kSoftmaxBiasBackward, "dbias")] = rule.inputs[kBias];
  return {};
}

// sum(dy * y) of each row, in the compute dtype.
size_t bias_backward_workspace(const Call& call) {
  const View& y = *call.inputs[input_of(kSoftmaxBiasBackward, "y")];
  return as_rows(y).count * size_of(compute_dtype(y.dtype));
}

// The sums of rows, then blocks of columns of the bias, each with a loop over the rows that share it.
template <class T>
Status bias_backward(const SoftmaxBiasBackward<T>& call, const Call& arguments) {
  using A = compute_t<T>;
  constexpr int64_t kColumns = 64;
  A* const dots = static_cast<A*>(arguments.workspace);
  arguments.context.parallel_for(call.rows, 20 + call.cols / 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T *dy = call.dy + row * call.dy_stride, *y = call.y + row * call.y_stride;
      dots[row] = cpu::interleaved_sum<A>(call.cols, [=](int64_t i) { return to_compute(dy[i]) * to_compute(y[i]); });
    }
  });
  const int64_t blocks = (call.bias_cols + kColumns - 1) / kColumns;
  const int64_t step = call.bias.has_columns() ? 1 : 0, terms = step ? std::min(kColumns, call.bias_cols) : call.cols;
  arguments.context.parallel_for(
      call.bias_rows * blocks, 20 + call.sharing_rows * (10 + terms / 4), [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t place = item / blocks * call.bias_cols, first = item % blocks * kColumns;
          const int64_t columns = std::min(kColumns, call.bias_cols - first);
          A sums[kColumns] = {};
          for (int64_t n = 0; n < call.sharing_rows; ++n) {
            const int64_t row = call.bias.row_at(place, n);
            for (int64_t i = 0; i < (step ? columns : call.cols); ++i)
              sums[i * step] += call.term(row, first + i, dots[row]);
          }
          for (int64_t i = 0; i < columns; ++i)
            if (call.bias.is_f32())
              static_cast<float*>(call.dbias)[place + first + i] = static_cast<float>(sums[i]);
            else
              static_cast<T*>(call.dbias)[place + first + i] = from_compute<T>(sums[i]);
        }
      });
  return {};
}

Status softmax_bias_backward_cpu(const Call& call) {
  return dispatch(call.inputs[input_of(kSoftmaxBiasBackward, "y")]->dtype, [&](auto tag) {
    return bias_backward(SoftmaxBiasBackward<typename decltype(tag)::type>(call), call);
  });
}

}  // namespace

Operator softmax() {
  return {kSoftmax,
          {.derivative = {{.op = "softmax_backward", .inputs = {"dy", "y"}, .gradients = {{"x", "dx"}}},
                          {.op = "softmax_bias_backward",
                           .inputs = {"dy", "y", "bias"},
                           .gradients = {{"bias", "dbias"}},
                           .if_given = "bias"}},
           .rule = forward_rule,
           .cpu = softmax_cpu,
           .cuda = softmax_cuda}};
}

Operator softmax_backward() {
  return {kSoftmaxBackward, {.rule = backward_rule, .cpu = softmax_backward_cpu, .cuda = softmax_backward_cuda}};
}

Operator softmax_bias_backward() {
  return {kSoftmaxBiasBackward,
          {.rule = bias_backward_rule,
           .workspace = bias_backward_workspace,
           .cpu = softmax_bias_backward_cpu,
           .cuda = softmax_bias_backward_cuda}};
}

}  // namespace fusedops
