// Rules, CPU kernels and derivatives of both norms. Limit: memory bandwidth. Threads take rows. A row is read from
// memory once, and from the L1 cache in each further pass.
#include "ops/normalization/norm.h"

#include <cmath>

#include "core/cpu/elementwise.h"
#include "core/cpu/float8.h"
#include "core/cpu/sum.h"
#include "ops/elementwise/dropout.h"
#include "ops/normalization/norm_cpu.h"

namespace fusedops {

namespace {

template <const Signature& kOp>
Status forward_rule(Rule& rule) {
  constexpr int kX = input_of(kOp, "x"), kResidual = find_input(kOp, "residual"), kBias = find_input(kOp, "bias");
  constexpr int kSeed = find_input(kOp, "seed"), kY = output_of(kOp, "y");
  constexpr Float8Places kFloat8 = float8_places(kOp);
  FUSEDOPS_TRY(rule.has_rows(kX));
  if constexpr (kResidual != kAbsent) FUSEDOPS_TRY(rule.same_as(kResidual, kX));
  FUSEDOPS_TRY(rule.has_rows(kX));  // again: the residual may refine x's shape
  FUSEDOPS_TRY(rule.per_column(input_of(kOp, "weight"), kX));
  if constexpr (kBias != kAbsent) FUSEDOPS_TRY(rule.per_column(kBias, kX));
  if constexpr (kSeed != kAbsent) FUSEDOPS_TRY(check_dropout(rule, kSeed, attribute_of<double>(kOp, "dropout")));

  const Shape& x = rule.inputs[kX];
  if constexpr (find_output(kOp, "s") != kAbsent) rule.outputs[output_of(kOp, "s")] = x;
  if constexpr (kFloat8.are_there()) return float8_rule(rule, kFloat8, x, kX);
  rule.outputs[kY] = x;
  const Shape statistic = rule.row_shape(kX, compute_dtype(x.dtype));
  for (const int index : {find_output(kOp, "mean"), find_output(kOp, "rstd")})
    if (index != kAbsent) rule.outputs[index] = statistic;
  return {};
}

template <const Signature& kOp>
Status backward_rule(Rule& rule) {
  constexpr int kX = input_of(kOp, "x"), kBias = find_input(kOp, "bias"), kMean = find_input(kOp, "mean");
  constexpr int kWeight = input_of(kOp, "weight"), kDs = input_of(kOp, "ds"), kSeed = input_of(kOp, "seed");
  const auto is_wanted = [&](AttributeIndex<bool> need) { return rule.attributes[need]; };
  FUSEDOPS_TRY(rule.has_rows(kX));
  FUSEDOPS_TRY(rule.same_as(input_of(kOp, "dy"), kX));
  FUSEDOPS_TRY(rule.has_rows(kX));  // again: dy may refine x's shape
  FUSEDOPS_TRY(rule.per_column(kWeight, kX));
  if constexpr (kBias != kAbsent) FUSEDOPS_TRY(rule.per_column(kBias, kX));
  if constexpr (kMean != kAbsent) FUSEDOPS_TRY(rule.per_row(kMean, kX));
  FUSEDOPS_TRY(rule.per_row(input_of(kOp, "rstd"), kX));
  if (rule.inputs[kDs].present) FUSEDOPS_TRY(rule.same_as(kDs, kX));
  FUSEDOPS_TRY(check_dropout(rule, kSeed, attribute_of<double>(kOp, "dropout")));

  const bool drops = rule.inputs[kSeed].present && is_wanted(attribute_of<bool>(kOp, "need_dropped_dx"));
  rule.outputs[output_of(kOp, "dx")] = rule.gradient(kX, is_wanted(attribute_of<bool>(kOp, "need_dx")), kX);
  rule.outputs[output_of(kOp, "dropped_dx")] = rule.gradient(kX, drops, kX);
  rule.outputs[output_of(kOp, "dweight")] =
      rule.gradient(kWeight, is_wanted(attribute_of<bool>(kOp, "need_dweight")), kX);
  if constexpr (kBias != kAbsent)
    rule.outputs[output_of(kOp, "dbias")] = rule.gradient(kBias, is_wanted(attribute_of<bool>(kOp, "need_dbias")), kX);
  return {};
}

using cpu::kBlock, cpu::Moments, cpu::rms_of, cpu::sum_of_blocks;

// 16-bit rows up to this length are widened once for all passes.
constexpr int64_t kMaxWidenedRow = 4096;

// Two passes avoid cancellation in the variance. The mean of the deviations from the rounded mean is added to it, which
// makes the mean of equal numbers exact.
template <class T, class A = compute_t<T>>
Moments<A> moments_of(const T* row, int64_t cols, double eps) {
  const auto sum = [](int64_t, int64_t n, const A* x) {
    return cpu::interleaved_sum<A>(n, [=](int64_t i) { return x[i]; });
  };
  const A mean = sum_of_blocks<A, A>(cols, sum, row) / A(cols);
  const auto deviations = [mean](int64_t, int64_t n, const A* x) {
    return cpu::interleaved_sums<A>(n, [=](int64_t i) -> cpu::TwoSums<A> {
      const A deviation = x[i] - mean;
      return {deviation, deviation * deviation};
    });
  };
  const auto sums = sum_of_blocks<A, cpu::TwoSums<A>>(cols, deviations, row);
  return {mean + sums.first / A(cols), A(1) / std::sqrt(sums.second / A(cols) + A(eps))};
}

template <class T>
auto moments(const T* row, int64_t cols, double eps, bool centered) {
  return centered ? moments_of(row, cols, eps) : rms_of(row, cols, eps);
}

// Kernels read weight + offset and bias in the compute dtype. True if that needs a copy in the workspace: for a
// narrower parameter, an offset, or an absent weight.
bool is_copied(const View* parameter, double offset, DType dtype) {
  return !parameter || offset != 0 || parameter->dtype != compute_dtype(dtype);
}

template <class T, class A = compute_t<T>>
const A* in_compute_dtype(const View* view, const Parameter& parameter, double offset, DType dtype, int64_t cols,
                          A* copy) {
  if (!is_copied(view, offset, dtype)) return static_cast<const A*>(view->data);
  for (int64_t j = 0; j < cols; ++j) copy[j] = view ? parameter.get<T>(j) + A(offset) : A(1);
  return copy;
}

template <const Signature& kOp>
size_t forward_workspace(const Call& call) {
  constexpr size_t kLargest = float8_places(kOp).are_there() ? kLargestBytes : 0;
  if (call.context.cuda) return kLargest;
  const View &x = *call.inputs[input_of(kOp, "x")], *bias = call.find(find_input(kOp, "bias"));
  const double offset = call.attributes.or_zero(find_attribute<double>(kOp, "weight_offset"));
  const bool is_weight_copied = is_copied(call.inputs[input_of(kOp, "weight")], offset, x.dtype);
  const int copies = is_weight_copied + (bias && is_copied(bias, 0, x.dtype));
  const size_t bytes = copies * as_rows(x).size * size_of(compute_dtype(x.dtype));
  return (bytes + kLargestBytes - 1) / kLargestBytes * kLargestBytes + kLargest;
}

// factor: weight + offset. shift: the bias, or null. float8: the destination of an 8-bit result, else null.
template <class T, class A = compute_t<T>>
void forward(const NormForward<T>& norm, const A* factor, const A* shift, bool centered, const Context& context,
             const Float8Result<A>* float8 = nullptr) {
  const int64_t cols = norm.cols;
  const bool streamed = cpu::is_streamed(norm.rows * cols * sizeof(T));
  const auto normalize = [&](int64_t row, const auto* x) {
    const auto [mean, rstd] = moments(x, cols, norm.eps, centered);
    const auto scaled = [mean, rstd](A x, A factor) { return (x - mean) * rstd * factor; };
    const auto shifted = [scaled](A x, A factor, A shift) { return scaled(x, factor) + shift; };
    if (float8) {
      cpu::quantize_row(*float8, row, [&](int64_t start, int64_t n, A* to) {
        A wide[kBlock];
        const A* block = cpu::widened(x + start, wide, n);
        if (shift)
          cpu::apply_block(shifted, n, to, block, factor + start, shift + start);
        else
          cpu::apply_block(scaled, n, to, block, factor + start);
      });
      return;
    }
    if (norm.mean) norm.mean[row] = mean;
    norm.rstd[row] = rstd;
    T* y = norm.y + row * cols;
    if (shift)
      cpu::apply(shifted, streamed, cols, y, x, factor, shift);
    else
      cpu::apply(scaled, streamed, cols, y, x, factor);
  };
  const int64_t nanoseconds_per_row = 40 + cols / 2;
  context.parallel_for(norm.rows, nanoseconds_per_row, [&](int64_t begin, int64_t end) {
    A wide[kMaxWidenedRow];
    for (int64_t row = begin; row < end; ++row) {
      const T* x = norm.x + row * norm.x_stride;
      if (norm.residual) {
        T* s = norm.s + row * cols;
        const T* residual = norm.residual + row * norm.residual_stride;
        const auto add = [](A x, A residual) { return x + residual; };
        if (norm.added.dropout.seed)
          cpu::apply_with_words(norm.added, row * cols, false, cols, s, x, residual);
        else
          cpu::apply(add, false, cols, s, x, residual);
        x = s;
      }
      if constexpr (!std::is_same_v<T, A>) {
        if (cols <= kMaxWidenedRow) {
          cpu::widen(x, wide, cols);
          normalize(row, wide);
          continue;
        }
      }
      normalize(row, x);
    }
  });
}

template <const Signature& kOp>
Status forward_cpu(const Call& call) {
  constexpr Float8Places kFloat8 = float8_places(kOp);
  return dispatch(call.inputs[input_of(kOp, "x")]->dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    using A = compute_t<T>;
    const NormForward<T> norm = norm_forward_of<kOp, T>(call);
    const DType dtype = call.inputs[input_of(kOp, "x")]->dtype;
    A* copies = static_cast<A*>(call.workspace);
    const View *weight = call.inputs[input_of(kOp, "weight")], *bias = call.find(find_input(kOp, "bias"));
    const A* factor = in_compute_dtype<T>(weight, norm.weight, norm.offset, dtype, norm.cols, copies);
    if (factor == copies) copies += norm.cols;
    const A* shift = bias ? in_compute_dtype<T>(bias, norm.bias, 0, dtype, norm.cols, copies) : nullptr;
    if constexpr (kFloat8.are_there()) {
      char* largest = static_cast<char*>(call.workspace) + forward_workspace<kOp>(call) - kLargestBytes;
      cpu::quantize(Float8Result<A>(call, kFloat8, norm.cols, largest), [&](const Float8Result<A>& pass, bool) {
        forward(norm, factor, shift, kIsCentered<kOp>, call.context, &pass);
      });
    } else {
      forward(norm, factor, shift, kIsCentered<kOp>, call.context);
    }
    return {};
  });
}

template <class A>
struct RowOfChunk {
  A mean, rstd;
  A *dweight, *dbias;  // sums of the row chunk
};

// One pass over n elements from `start` on. Adds the row's terms to the sums of its chunk, and returns the sums of wdy
// * xhat and of wdy. Each sum has the same bits as if it were computed alone.
template <bool kWeight, bool kBias, class A>
cpu::TwoSums<A> sums_of_block(const RowOfChunk<A>& row, int64_t start, int64_t n, const A* dy, const A* x,
                              const A* factor) {
  return cpu::interleaved_sums<A>(
      n,
      [=, mean = row.mean, rstd = row.rstd, dweight = kWeight ? row.dweight + start : nullptr,
       dbias = kBias ? row.dbias + start : nullptr](int64_t i) -> cpu::TwoSums<A> {
        const A xhat = (x[i] - mean) * rstd, wdy = dy[i] * factor[i];
        if constexpr (kWeight) dweight[i] += dy[i] * xhat;
        if constexpr (kBias) dbias[i] += dy[i];
        return {wdy * xhat, wdy};
      });
}

template <class T, class A = compute_t<T>>
Status backward(const NormBackward<T>& norm, const A* factor, const Context& context) {
  const int64_t cols = norm.cols, partials = norm.chunks.count * cols;
  const bool streamed = cpu::is_streamed(norm.rows * cols * sizeof(T));

  const auto sums_of = norm.need_dweight
                           ? (norm.need_dbias ? sums_of_block<true, true, A> : sums_of_block<true, false, A>)
                           : (norm.need_dbias ? sums_of_block<false, true, A> : sums_of_block<false, false, A>);
  const auto backward_row = [&](int64_t row, A* dweight, A* dbias) {
    const T *dy_row = norm.dy + row * norm.dy_stride, *x_row = norm.x + row * norm.x_stride;
    const A mean = norm.mean ? norm.mean[row] : A(0), rstd = norm.rstd[row];
    const auto row_sums_of_block = [&](int64_t start, int64_t n, const A* dy, const A* x, const A* w) {
      return sums_of(RowOfChunk<A>{mean, rstd, dweight, dbias}, start, n, dy, x, w);
    };
    const auto sums = sum_of_blocks<A, cpu::TwoSums<A>>(cols, row_sums_of_block, dy_row, x_row, factor);
    if (!norm.dx && !norm.dropped_dx) return;

    const A mean_wdy_xhat = sums.first / A(cols), mean_wdy = norm.mean ? sums.second / A(cols) : A(0);
    const auto slope = [=](A dy, A x, A w) { return rstd * (dy * w - mean_wdy - (x - mean) * rstd * mean_wdy_xhat); };
    const auto slope_and_ds = [=](A dy, A x, A w, A ds) { return slope(dy, x, w) + ds; };
    const bool is_streamed_out = streamed && !norm.dropped_dx;  // else they are read again
    T* slopes = (norm.dx ? norm.dx : norm.dropped_dx) + row * cols;
    if (norm.ds)
      cpu::apply(slope_and_ds, is_streamed_out, cols, slopes, dy_row, x_row, factor, norm.ds + row * norm.ds_stride);
    else
      cpu::apply(slope, is_streamed_out, cols, slopes, dy_row, x_row, factor);
    if (norm.dropped_dx)
      cpu::apply_with_words(norm.dropout, row * cols, streamed, cols, norm.dropped_dx + row * cols, slopes);
  };

  const int64_t chunk_ns = 1 + norm.chunks.rows * (60 + cols);
  context.parallel_for(norm.chunks.count, chunk_ns, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      A* sums = norm.partials + chunk * cols;
      A* dweight = norm.need_dweight ? sums : nullptr;
      A* dbias = norm.need_dbias ? sums + (dweight ? partials : 0) : nullptr;
      if (dweight) std::fill_n(dweight, cols, A(0));
      if (dbias) std::fill_n(dbias, cols, A(0));
      const int64_t first = chunk * norm.chunks.rows, last = std::min(first + norm.chunks.rows, norm.rows);
      for (int64_t row = first; row < last; ++row) backward_row(row, dweight, dbias);
    }
  });
  const auto sum = [&](const A* from, const View& to) {
    return cpu::sum_partials(context, from, norm.chunks.count, cols, to);
  };
  if (norm.need_dweight) FUSEDOPS_TRY(sum(norm.partials, norm.dweight));
  if (norm.need_dbias) FUSEDOPS_TRY(sum(norm.partials + (norm.need_dweight ? partials : 0), norm.dbias));
  return {};
}

template <const Signature& kOp>
Status backward_cpu(const Call& call) {
  const View &x = *call.inputs[input_of(kOp, "x")], *weight = call.inputs[input_of(kOp, "weight")];
  return dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const NormBackward<T> norm = norm_backward_of<kOp, T>(call);
    return backward(norm, in_compute_dtype<T>(weight, norm.weight, norm.offset, x.dtype, norm.cols, norm.weight_copy),
                    call.context);
  });
}

// Partial sums, then row_sums on a GPU or weight_copy on a CPU.
template <const Signature& kOp>
size_t backward_workspace(const Call& call) {
  const View &x = *call.inputs[input_of(kOp, "x")], *weight = call.inputs[input_of(kOp, "weight")];
  const Rows rows = as_rows(x);
  const double offset = call.attributes.or_zero(find_attribute<double>(kOp, "weight_offset"));
  const int64_t copied = is_copied(weight, offset, x.dtype) ? rows.size : 0;
  const int sums =
      (weight && call.attributes[attribute_of<bool>(kOp, "need_dweight")]) +
      (call.find(find_input(kOp, "bias")) && call.attributes.or_zero(find_attribute<bool>(kOp, "need_dbias")));
  return (sums * row_chunks_of(rows.count).count * rows.size + (call.context.cuda ? 2 * rows.count : copied)) *
         size_of(compute_dtype(x.dtype));
}

template <const Signature& kOp>
Operator forward_operator(Kernel cuda, std::vector<Step> derivative = {}) {
  return {kOp,
          {.derivative = std::move(derivative),
           .rule = forward_rule<kOp>,
           .workspace = forward_workspace<kOp>,
           .cpu = forward_cpu<kOp>,
           .cuda = cuda,
           .rounds_to_8_bits = float8_places(kOp).are_there()}};
}

template <const Signature& kOp>
Operator backward_operator(Kernel cuda) {
  return {kOp,
          {.rule = backward_rule<kOp>, .workspace = backward_workspace<kOp>, .cpu = backward_cpu<kOp>, .cuda = cuda}};
}

// The derivative of a norm of a sum. `step` is the backward without a seed: x and the residual share a gradient.
std::vector<Step> derivative_of_sum(Step step) {
  step.gradients.insert(step.gradients.begin(), {{"x", "dx"}, {"residual", "dx"}});
  Step dropped = step;
  dropped.inputs.back() = dropped.if_given = "seed";
  dropped.gradients[0].source = "dropped_dx";
  return {dropped,
          step,
          {.op = "dropout",
           .inputs = {"ds", "seed"},
           .gradients = {{"x", "y"}},
           .if_given = "seed",
           .attributes = {{"rate", "dropout"}}},
          {.gradients = {{"x", "ds"}, {"residual", "ds"}}}};
}

}  // namespace

// Inputs of rms_norm_backward: dy, x, weight, rstd, ds, seed. Null: not given.
Operator rms_norm() {
  return forward_operator<kRmsNorm>(rms_norm_cuda, {{.op = "rms_norm_backward",
                                                     .inputs = {"dy", "x", "weight", "rstd", nullptr, nullptr},
                                                     .gradients = {{"x", "dx"}, {"weight", "dweight"}}}});
}

Operator add_rms_norm() {
  return forward_operator<kAddRmsNorm>(add_rms_norm_cuda,
                                       derivative_of_sum({.op = "rms_norm_backward",
                                                          .inputs = {"dy", "s", "weight", "rstd", "ds", nullptr},
                                                          .gradients = {{"weight", "dweight"}}}));
}

Operator rms_norm_float8() { return forward_operator<kRmsNormFloat8>(rms_norm_float8_cuda); }
Operator add_rms_norm_float8() { return forward_operator<kAddRmsNormFloat8>(add_rms_norm_float8_cuda); }
Operator rms_norm_backward() { return backward_operator<kRmsNormBackward>(rms_norm_backward_cuda); }

Operator layer_norm() {
  return forward_operator<kLayerNorm>(layer_norm_cuda,
                                      {{.op = "layer_norm_backward",
                                        .inputs = {"dy", "x", "weight", "bias", "mean", "rstd", nullptr, nullptr},
                                        .gradients = {{"x", "dx"}, {"weight", "dweight"}, {"bias", "dbias"}}}});
}

Operator add_layer_norm() {
  return forward_operator<kAddLayerNorm>(
      add_layer_norm_cuda, derivative_of_sum({.op = "layer_norm_backward",
                                              .inputs = {"dy", "s", "weight", "bias", "mean", "rstd", "ds", nullptr},
                                              .gradients = {{"weight", "dweight"}, {"bias", "dbias"}}}));
}

Operator layer_norm_float8() { return forward_operator<kLayerNormFloat8>(layer_norm_float8_cuda); }
Operator layer_norm_backward() { return backward_operator<kLayerNormBackward>(layer_norm_backward_cuda); }

}  // namespace fusedops
