#include "ops/loss/linear_cross_entropy.h"

#include "ops/activations/bias_act.h"
#include "ops/loss/linear_cross_entropy_loops.h"
#include "ops/loss/losses_cpu.h"
#include "ops/products/linear.h"

namespace fusedops {
namespace {

constexpr LinearArguments kAt = kLinearCrossEntropy, kBackwardAt = kLinearCrossEntropyBackward;
constexpr int kDx = output_of(kLinearCrossEntropyBackward, "dx"),
              kDweight = output_of(kLinearCrossEntropyBackward, "dweight"),
              kDbias = output_of(kLinearCrossEntropyBackward, "dbias");
constexpr auto kNeedDx = attribute_of<bool>(kLinearCrossEntropyBackward, "need_dx");
constexpr auto kNeedDweight = attribute_of<bool>(kLinearCrossEntropyBackward, "need_dweight");
constexpr auto kNeedDbias = attribute_of<bool>(kLinearCrossEntropyBackward, "need_dbias");

Status check_linear(Rule& rule, const LinearArguments& at, Shape* logits) {
  return linear_rule(rule, at.x, at.weight, at.bias, rule.attributes[at.transpose_weight], logits);
}

Status forward_rule(Rule& rule) {
  Shape logits;
  FUSEDOPS_TRY(check_linear(rule, kAt, &logits));
  return loss_rule(rule, kLinearCrossEntropy, kAt.x, logits);
}

Status backward_rule(Rule& rule) {
  Shape logits;
  FUSEDOPS_TRY(check_linear(rule, kBackwardAt, &logits));
  FUSEDOPS_TRY(loss_backward_rule(rule, kLinearCrossEntropyBackward, kBackwardAt.x, logits));
  const Shape &x = rule.inputs[kBackwardAt.x], &weight = rule.inputs[kBackwardAt.weight],
              &bias = rule.inputs[kBackwardAt.bias];
  const bool need_dbias = bias.present && rule.attributes[kNeedDbias];
  rule.outputs[kDx] = rule.attributes[kNeedDx] ? x : Shape::of(x.dtype, {0});
  rule.outputs[kDweight] = rule.attributes[kNeedDweight] ? weight : Shape::of(x.dtype, {0});
  rule.outputs[kDbias] = need_dbias ? bias : Shape::of(x.dtype, {0});
  return {};
}

size_t forward_workspace(const Call& call) {
  const LinearLogits linear(call, kAt);
  return linear.dtype == DType::f64 ? LossMemory<double>(linear, nullptr).memory.taken()
                                    : LossMemory<float>(linear, nullptr).memory.taken();
}

size_t backward_workspace(const Call& call) { return LossProducts(call, nullptr).workspace(); }

struct Cpu {
  template <class A>
  static Status check_labels(const LossRows<A>& rows, const Call& call) {
    int64_t count;
    return cpu::count_rows(rows, call.op.name, &count);
  }

  static Status multiply(const Matmul& product, void*, const Context& context) {
    return multiply_cpu(product, context);
  }

  template <class T, class... Arguments>
  static Status sum_fused(const Arguments&...) {
    return {};
  }
  template <class... Arguments>
  static Status differentiate_fused(const Arguments&...) {
    return {};
  }

  template <class A, class T>
  static Status reduce_block(const Losses<A>& losses, const LogitBlock<T>& block, const LossMemory<A>& memory,
                             int64_t tile, const Context& context) {
    context.parallel_for(block.rows, 50 + block.columns, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        A* const x = block.products + i * block.columns;
        if (block.bias || block.cap != 0)
#pragma GCC ivdep
          for (int64_t j = 0; j < block.columns; ++j) x[j] = block.logit(x[j], j).value;
        const int64_t row = block.row + i, at = losses.labels[row] - block.first_class;
        if (at >= 0 && at < block.columns) memory.label_logits[row] = x[at];
        constexpr int64_t kTile = LossTiles::kTileBytes / sizeof(A);
        RowStats<A>* to = memory.tile_stats + row * memory.tiles + tile;
        for (int64_t j = 0; j < block.columns || j == 0; j += kTile)
          *to++ = cpu::row_stats(losses, x + j, std::min(kTile, block.columns - j));
      }
    });
    return {};
  }

  template <class A>
  static Status finish(const Losses<A>& losses, const LossMemory<A>& memory, const Call& call) {
    return cpu::finish_losses(
        losses, call.op.name, call.context, 50, memory.losses,
        [&](int64_t row) { return losses.combined(memory.tile_stats + row * memory.tiles, memory.tiles); },
        [&](int64_t row, int64_t) { return memory.label_logits[row]; });
  }

  template <class A, class T>
  static Status differentiate(const LossGradient<A>& gradient, const LogitBlock<T>& block, T* dz,
                              const Context& context) {
    context.parallel_for(block.rows, 50 + block.columns, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = block.row + i, label = gradient.labels[row], at = label - block.first_class;
        const A* const x = block.products + i * block.columns;
        T* const to = dz + i * block.columns;
        if (gradient.is_ignored(label)) {
          std::fill_n(to, block.columns, T{});
          continue;
        }
        const A slope = gradient.slope(row);
        const auto each = gradient.derivative(row, slope), of_label = gradient.derivative_of_label(row, slope);
        const auto value = [&](const auto& derivative, int64_t j) {
          const auto logit = block.logit(x[j], j);
          return derivative(logit.value) * logit.slope;
        };
        A buffer[cpu::kBlock];
        for (int64_t start = 0; start < block.columns; start += cpu::kBlock) {
          const int64_t size = std::min(cpu::kBlock, block.columns - start);
#pragma GCC ivdep
          for (int64_t j = 0; j < size; ++j) buffer[j] = value(each, start + j);
          for (int64_t j = 0; j < size; ++j) to[start + j] = from_compute<T>(buffer[j]);
        }
        if (at >= 0 && at < block.columns) to[at] = from_compute<T>(value(of_label, at));
      }
    });
    return {};
  }

  // Rounds sums to c.
  static Status round(const void* sums, const Matmul& product, const Context& context) {
    return dispatch(product.dtype, [&](auto tag) -> Status {
      using T = typename decltype(tag)::type;
      const auto* const from = static_cast<const compute_t<T>*>(sums);
      context.parallel_for(product.m, 10 + product.n / 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * product.n; i < end * product.n; ++i)
          static_cast<T*>(product.c)[i] = from_compute<T>(from[i]);
      });
      return {};
    });
  }
};

Status forward_cpu(const Call& call) {
  return dispatch(call.inputs[kAt.x]->dtype,
                  [&](auto tag) { return linear_cross_entropy_forward<typename decltype(tag)::type, Cpu>(call); });
}

Status backward_cpu(const Call& call) {
  return dispatch(call.inputs[kBackwardAt.x]->dtype,
                  [&](auto tag) { return linear_cross_entropy_gradient<typename decltype(tag)::type, Cpu>(call); });
}

}  // namespace

LinearLogits::LinearLogits(const Call& call, const LinearArguments& at) {
  const View &xs = *call.inputs[at.x], &weights = *call.inputs[at.weight];
  const View* const biases = call.inputs[at.bias];
  const bool transpose = call.attributes[at.transpose_weight];
  const Rows x_rows = as_rows(xs);
  dtype = xs.dtype;
  rows = x_rows.count, depth = x_rows.size, columns = weights.sizes[transpose ? 0 : 1];
  x = {xs.data, false, x_rows.stride, 0};
  weight = Matmul::Matrix::of(weights, transpose);
  bias = biases ? biases->data : nullptr;
  softcap = call.attributes[at.softcap];
  first_class = call.attributes[at.first_class];

  const int64_t size = size_of(compute_dtype(dtype)), tile = LossTiles::kTileBytes / size;
  const int64_t tiles = kGradientBytes / (std::max<int64_t>(rows, 1) * size_of(dtype) * tile);
  block_columns = std::max<int64_t>(tiles, 1) * tile;
  const int64_t most = kBlockBytes / (std::max<int64_t>(std::min(block_columns, columns), 1) * size);
  constexpr int64_t kRows = 128;  // rows of a tile of the product
  block_rows = std::min(most < kRows ? std::max<int64_t>(most, 1) : most / kRows * kRows, std::max<int64_t>(rows, 1));
}

LossProducts::LossProducts(const Call& call, void* workspace)
    : linear(call, kBackwardAt), call_(call), memory_(workspace), dx_(call.outputs[kDx].data) {
  need_dx = call.attributes[kNeedDx], need_dweight = call.attributes[kNeedDweight];
  need_dbias = linear.bias && call.attributes[kNeedDbias];
  sums = memory_.take(linear.block_bytes());
  dz = memory_.take(linear.rows * std::min(linear.block_columns, linear.columns) * size_of(linear.dtype));
  const DType wide = compute_dtype(linear.dtype);
  if (need_dx && wide != linear.dtype && !linear.is_one_block())
    dx_sums = memory_.take(linear.rows * linear.depth * size_of(wide));
}

Matmul LossProducts::dweight(int64_t column, int64_t columns) const {
  const Matmul::Matrix gradient = {dz, false, columns, 0};
  char* const to = static_cast<char*>(call_.outputs[kDweight].data);
  const int64_t size = size_of(linear.dtype);
  if (call_.attributes[kBackwardAt.transpose_weight])
    return {linear.dtype, 1,
            columns,      linear.depth,
            linear.rows,  gradient.turned(),
            linear.x,     to + column * linear.depth * size};
  Matmul product(linear.dtype, 1, linear.depth, columns, linear.rows, linear.x.turned(), gradient, to + column * size);
  product.c_stride = linear.columns;
  return product;
}

Matmul LossProducts::dx_product(int64_t column, int64_t columns, void* to) const {
  return {linear.dtype,
          1,
          linear.rows,
          linear.depth,
          columns,
          {dz, false, columns, 0},
          linear.weight.from(0, column, linear.dtype).turned(),
          to};
}

Matmul LossProducts::dx(int64_t column, int64_t columns) const {
  if (linear.is_one_block()) return dx_of_all_columns();
  return dx_product(column, columns, dx_sums ? dx_sums : dx_).to_sums(/*add=*/column > 0).without_workspace();
}

// Passes body a call of bias_act_backward for the sum of dz over the rows.
template <class Body>
auto LossProducts::with_dbias(int64_t column, int64_t columns, Body&& body) const {
  const int64_t offset = column * size_of(linear.dtype), stride = 1;
  const MatrixView gradient(linear.dtype, linear.rows, columns, columns, dz);
  const auto part = [&](void* data) {
    return View{data ? static_cast<char*>(data) + offset : nullptr, linear.dtype, 1, &columns, &stride};
  };
  const View bias = part(const_cast<void*>(linear.bias));
  SubCall<kBiasActBackward> sum(call_);
  set_row_sum(sum, gradient, &bias, part(call_.outputs[kDbias].data));
  return body(sum);
}

Status LossProducts::run_dbias(int64_t column, int64_t columns) const {
  return with_dbias(column, columns, [&](auto& sum) { return sum.run(rest()); });
}

size_t LossProducts::workspace() const {
  size_t most = 0;
  (void)linear.for_each_column_block([&](int64_t column, int64_t columns) {
    const bool on_gpu = call_.context.cuda;  // products on the CPU need no workspace
    if (need_dx && on_gpu) most = std::max(most, dx(column, columns).workspace());
    if (need_dweight && on_gpu) most = std::max(most, dweight(column, columns).workspace());
    if (need_dbias) most = std::max(most, with_dbias(column, columns, [](auto& sum) { return sum.workspace(); }));
    return Status();
  });
  return memory_.taken() + most;
}

Operator linear_cross_entropy() {
  return {kLinearCrossEntropy,
          {.derivative = {{.op = "linear_cross_entropy_backward",
                           .inputs = {"dloss", "x", "weight", "labels", "bias", "lse", "count"},
                           .gradients = {{"x", "dx"}, {"weight", "dweight"}, {"bias", "dbias"}}}},
           .rule = forward_rule,
           .workspace = forward_workspace,
           .cpu = forward_cpu,
           .cuda = linear_cross_entropy_cuda,
           .autocast = true}};
}

Operator linear_cross_entropy_backward() {
  return {kLinearCrossEntropyBackward,
          {.rule = backward_rule,
           .workspace = backward_workspace,
           .cpu = backward_cpu,
           .cuda = linear_cross_entropy_backward_cuda}};
}

}  // namespace fusedops
