// The rule and the CPU kernels of both norms.
//
// Limit: memory bandwidth. Rows go to threads; a row comes from memory once, and from the first-level cache for each
// further pass over it.
#include "ops/normalization/norm.h"

#include <cmath>

#include "core/cpu/elementwise.h"
#include "core/cpu/float8.h"
#include "core/cpu/sum.h"
#include "ops/elementwise/dropout.h"

namespace fusedops {

Status norm_forward_rule(Rule& rule, const NormForwardPlaces& at) {
  FUSEDOPS_TRY(rule.has_rows(at.x));
  if (at.residual != kNowhere) FUSEDOPS_TRY(rule.same_as(at.residual, at.x));
  FUSEDOPS_TRY(rule.has_rows(at.x));  // again, with what the residual says of x
  FUSEDOPS_TRY(rule.per_column(at.weight, at.x));
  if (at.bias != kNowhere) FUSEDOPS_TRY(rule.per_column(at.bias, at.x));
  if (at.seed != kNowhere) FUSEDOPS_TRY(check_dropout(rule, at.seed, at.dropout));

  const Shape &x = rule.inputs[at.x], statistic = rule.row_shape(at.x, compute_dtype(x.dtype));
  rule.outputs[at.y] = x;
  if (at.s != kNowhere) rule.outputs[at.s] = x;
  if (at.mean != kNowhere) rule.outputs[at.mean] = statistic;
  if (at.rstd != kNowhere) rule.outputs[at.rstd] = statistic;
  return at.float8.are_there() ? float8_rule(rule, at.float8, x, at.x) : Status();
}

Status norm_backward_rule(Rule& rule, const NormBackwardPlaces& at) {
  FUSEDOPS_TRY(rule.has_rows(at.x));
  FUSEDOPS_TRY(rule.same_as(at.dy, at.x));
  FUSEDOPS_TRY(rule.has_rows(at.x));  // again, with what dy says of x
  FUSEDOPS_TRY(rule.per_column(at.weight, at.x));
  if (at.bias != kNowhere) FUSEDOPS_TRY(rule.per_column(at.bias, at.x));
  if (at.mean != kNowhere) FUSEDOPS_TRY(rule.per_row(at.mean, at.x));
  FUSEDOPS_TRY(rule.per_row(at.rstd, at.x));
  if (rule.inputs[at.ds].present) FUSEDOPS_TRY(rule.same_as(at.ds, at.x));
  FUSEDOPS_TRY(check_dropout(rule, at.seed, at.dropout));

  const Shape& x = rule.inputs[at.x];
  const auto gradient = [&](const Shape& input, AttributePlace<bool> need) {
    const bool needed = input.present && rule.attributes[need];
    return needed ? input : Shape::of(input.present ? input.dtype : x.dtype, {0});
  };
  rule.outputs[at.dx] = gradient(x, at.need_dx);
  const bool drops = rule.inputs[at.seed].present && rule.attributes[at.need_dropped_dx];
  rule.outputs[at.dropped_dx] = drops ? x : Shape::of(x.dtype, {0});
  rule.outputs[at.dweight] = gradient(rule.inputs[at.weight], at.need_dweight);
  if (at.bias != kNowhere) rule.outputs[at.dbias] = gradient(rule.inputs[at.bias], at.need_dbias);
  return {};
}

namespace {

using cpu::kBlock;

// 16-bit rows of at most this length are widened once, for all passes over them.
constexpr int64_t kWideRow = 4096;

// The sum of body(start, n, row...) over the blocks of some rows of the same length: body gets n elements of each row,
// from `start` on, in the compute type A.
template <class A, class Sum, class Body, class... Rows>
Sum sum_of_blocks(int64_t cols, Body body, const Rows*... rows) {
  return cpu::pairwise_blocks<Sum>(0, (cols + kBlock - 1) / kBlock, [&](int64_t block) {
    const int64_t start = block * kBlock, n = std::min(kBlock, cols - start);
    return [&]<size_t... I>(std::index_sequence<I...>) {
      A buffers[sizeof...(rows)][kBlock];
      return body(start, n, cpu::widened(rows + start, buffers[I], n)...);
    }(std::index_sequence_for<Rows...>());
  });
}

template <class A>
struct Moments {
  A mean;  // 0 for RMSNorm
  A rstd;
};

template <class T, class A = compute_t<T>>
Moments<A> rms_of(const T* row, int64_t cols, double eps) {
  const auto squares = [](int64_t, int64_t n, const A* x) {
    return cpu::interleaved_sum<A>(n, [=](int64_t i) { return x[i] * x[i]; });
  };
  return {A(0), A(1) / std::sqrt(sum_of_blocks<A, A>(cols, squares, row) / A(cols) + A(eps))};
}

// Two passes, for a variance without cancellation. The deviations from the mean, which was rounded, have a mean of
// their own: added to it, it makes the mean of equal numbers exact.
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

// The kernels read weight + offset, and bias, as numbers of the compute dtype: the parameter itself, or a copy in the
// workspace if it is narrower or has an offset, or is an absent weight.
bool is_copied(const View* parameter, double offset, DType dtype) {
  return !parameter || offset != 0 || parameter->dtype != compute_dtype(dtype);
}

template <class T, class A = compute_t<T>>
const A* prepared(const View* view, const Parameter& parameter, double offset, DType dtype, int64_t cols, A* copy) {
  if (!is_copied(view, offset, dtype)) return static_cast<const A*>(view->data);
  for (int64_t j = 0; j < cols; ++j) copy[j] = view ? parameter.get<T>(j) + A(offset) : A(1);
  return copy;
}

// `float8`: where the result goes if it has 8 bits, else null.
template <class T>
void forward(const Call& call, const NormForwardPlaces& at, const Float8Result<compute_t<T>>* float8) {
  using A = compute_t<T>;
  const NormForward<T> norm(call, at);
  const View* bias = at.bias == kNowhere ? nullptr : call.inputs[at.bias];
  const DType dtype = call.inputs[at.x]->dtype;
  const int64_t cols = norm.cols;
  A* copies = static_cast<A*>(call.workspace);
  const A* factor = prepared<T>(call.inputs[at.weight], norm.weight, norm.offset, dtype, cols, copies);
  const A* shift =
      bias ? prepared<T>(bias, norm.bias, 0, dtype, cols, copies + (factor == copies ? cols : 0)) : nullptr;

  const bool streamed = cpu::is_streamed(norm.rows * cols * sizeof(T));
  const auto normalize = [&](int64_t row, const auto* x) {
    const auto [mean, rstd] = moments(x, cols, norm.eps, at.is_centered());
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
  call.context.parallel_for(norm.rows, nanoseconds_per_row, [&](int64_t begin, int64_t end) {
    A wide[kWideRow];
    for (int64_t row = begin; row < end; ++row) {
      const T* x = norm.x + row * norm.x_stride;
      if (norm.residual) {
        T* s = norm.s + row * cols;
        const T* residual = norm.residual + row * norm.residual_stride;
        const auto add = [](A x, A residual) { return x + residual; };
        if (norm.added.dropout.seed)
          cpu::apply_drawing(norm.added.template prepared<T>(), row * cols, false, cols, s, x, residual);
        else
          cpu::apply(add, false, cols, s, x, residual);
        x = s;
      }
      if constexpr (!std::is_same_v<T, A>) {
        if (cols <= kWideRow) {
          cpu::widen(x, wide, cols);
          normalize(row, wide);
          continue;
        }
      }
      normalize(row, x);
    }
  });
}

template <class T>
Status forward(const Call& call, const NormForwardPlaces& at) {
  if (!at.float8.are_there()) {
    forward<T>(call, at, nullptr);
    return {};
  }
  using A = compute_t<T>;
  const int64_t cols = as_rows(*call.inputs[at.x]).size;
  char* largest = static_cast<char*>(call.workspace) + norm_forward_workspace(call, at) - kLargestBytes;
  cpu::quantize(Float8Result<A>(call, at.float8, cols, largest),
                [&](const Float8Result<A>& pass, bool) { forward<T>(call, at, &pass); });
  return {};
}

template <class A>
struct RowOfSlab {
  A mean, rstd;
  A *dweight, *dbias;  // sums of the slab
};

// In one pass over n elements from `start` on: adds the row's terms to the sums of its slab, and returns the sums of
// wdy * xhat and of wdy. Each of these alone would have the same bits.
template <bool kWeight, bool kBias, class A>
cpu::TwoSums<A> sums_of_block(const RowOfSlab<A>& row, int64_t start, int64_t n, const A* dy, const A* x,
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

template <class T>
Status backward(const Call& call, const NormBackwardPlaces& at) {
  using A = compute_t<T>;
  const NormBackward<T> norm(call, at);
  const int64_t cols = norm.cols, partials = norm.slabs.count * cols;
  const A* factor =
      prepared<T>(call.inputs[at.weight], norm.weight, norm.offset, call.inputs[at.x]->dtype, cols, norm.row_sums);
  const bool streamed = cpu::is_streamed(norm.rows * cols * sizeof(T));

  const auto sums_of = norm.need_dweight
                           ? (norm.need_dbias ? sums_of_block<true, true, A> : sums_of_block<true, false, A>)
                           : (norm.need_dbias ? sums_of_block<false, true, A> : sums_of_block<false, false, A>);
  const auto backward_row = [&](int64_t row, A* dweight, A* dbias) {
    const T *dy_row = norm.dy + row * norm.dy_stride, *x_row = norm.x + row * norm.x_stride;
    const A mean = norm.mean ? norm.mean[row] : A(0), rstd = norm.rstd[row];
    const auto sums_of_this = [&](int64_t start, int64_t n, const A* dy, const A* x, const A* w) {
      return sums_of(RowOfSlab<A>{mean, rstd, dweight, dbias}, start, n, dy, x, w);
    };
    const auto sums = sum_of_blocks<A, cpu::TwoSums<A>>(cols, sums_of_this, dy_row, x_row, factor);
    if (!norm.dx && !norm.dropped_dx) return;

    const A mean_wdy_xhat = sums.first / A(cols), mean_wdy = norm.mean ? sums.second / A(cols) : A(0);
    const auto slope = [=](A dy, A x, A w) { return rstd * (dy * w - mean_wdy - (x - mean) * rstd * mean_wdy_xhat); };
    const auto slope_and_ds = [=](A dy, A x, A w, A ds) { return slope(dy, x, w) + ds; };
    const bool gone = streamed && !norm.dropped_dx;  // else they are read again
    T* slopes = (norm.dx ? norm.dx : norm.dropped_dx) + row * cols;
    if (norm.ds)
      cpu::apply(slope_and_ds, gone, cols, slopes, dy_row, x_row, factor, norm.ds + row * norm.ds_stride);
    else
      cpu::apply(slope, gone, cols, slopes, dy_row, x_row, factor);
    if (norm.dropped_dx)
      cpu::apply_drawing(norm.dropout.template prepared<T>(), row * cols, streamed, cols, norm.dropped_dx + row * cols,
                         slopes);
  };

  const int64_t nanoseconds_per_slab = 1 + norm.slabs.rows * (60 + cols);
  call.context.parallel_for(norm.slabs.count, nanoseconds_per_slab, [&](int64_t begin, int64_t end) {
    for (int64_t slab = begin; slab < end; ++slab) {
      A* sums = norm.partials + slab * cols;
      A* dweight = norm.need_dweight ? sums : nullptr;
      A* dbias = norm.need_dbias ? sums + (dweight ? partials : 0) : nullptr;
      if (dweight) std::fill_n(dweight, cols, A(0));
      if (dbias) std::fill_n(dbias, cols, A(0));
      const int64_t first = slab * norm.slabs.rows, last = std::min(first + norm.slabs.rows, norm.rows);
      for (int64_t row = first; row < last; ++row) backward_row(row, dweight, dbias);
    }
  });
  const auto sum = [&](const A* from, const View& to) {
    return cpu::sum_partials(call.context, from, norm.slabs.count, cols, to);
  };
  if (norm.need_dweight) FUSEDOPS_TRY(sum(norm.partials, norm.dweight));
  if (norm.need_dbias) FUSEDOPS_TRY(sum(norm.partials + (norm.need_dweight ? partials : 0), norm.dbias));
  return {};
}

}  // namespace

size_t norm_forward_workspace(const Call& call, const NormForwardPlaces& at) {
  const size_t largest = at.float8.are_there() ? kLargestBytes : 0;
  if (call.context.cuda) return largest;
  const View& x = *call.inputs[at.x];
  const View* bias = at.bias == kNowhere ? nullptr : call.inputs[at.bias];
  const double offset = weight_offset(call, at.offset);
  const int copies = is_copied(call.inputs[at.weight], offset, x.dtype) + (bias && is_copied(bias, 0, x.dtype));
  const size_t bytes = copies * as_rows(x).size * size_of(compute_dtype(x.dtype));
  return (bytes + kLargestBytes - 1) / kLargestBytes * kLargestBytes + largest;
}

Status norm_forward_cpu(const Call& call, const NormForwardPlaces& at) {
  return dispatch(call.inputs[at.x]->dtype, [&](auto tag) { return forward<typename decltype(tag)::type>(call, at); });
}

// After the partial sums, the CPU keeps its copy of weight + offset where CUDA keeps sums over rows.
size_t norm_backward_workspace(const Call& call, const NormBackwardPlaces& at) {
  const View& x = *call.inputs[at.x];
  const Rows rows = as_rows(x);
  const double offset = weight_offset(call, at.offset);
  const bool copied = is_copied(call.inputs[at.weight], offset, x.dtype);
  const int64_t more = call.context.cuda ? 2 * rows.count : (copied ? rows.size : 0);
  const auto needed = [&](int input, AttributePlace<bool> need) {
    return input != kNowhere && call.inputs[input] && call.attributes[need];
  };
  const int sums = needed(at.weight, at.need_dweight) + needed(at.bias, at.need_dbias);
  return (sums * slabs_of(rows.count).count * rows.size + more) * size_of(compute_dtype(x.dtype));
}

Status norm_backward_cpu(const Call& call, const NormBackwardPlaces& at) {
  return dispatch(call.inputs[at.x]->dtype, [&](auto tag) { return backward<typename decltype(tag)::type>(call, at); });
}

}  // namespace fusedops
