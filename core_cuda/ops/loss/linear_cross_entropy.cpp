#include "ops/loss/linear_cross_entropy.h"

#include <cstring>

#include "core/cpu/widest.h"
#include "ops/activations/bias_act.h"
#include "ops/loss/linear_cross_entropy_loops.h"
#include "ops/loss/losses_cpu.h"
#include "ops/products/linear.h"

namespace fusedops {
namespace {

constexpr const GradientPlaces &kAt = kKeptGradients, &kBackwardAt = kNeededGradients;

Status forward_rule(Rule& rule) {
  Shape logits;
  FUSEDOPS_TRY(linear_logits_rule(rule, kAt, &logits));
  FUSEDOPS_TRY(loss_rule(rule, kLinearCrossEntropy, kAt.x, logits));
  return gradients_rule(rule, kAt, has_unit_gradients<kLinearCrossEntropy>(rule.attributes, rule.inputs[kAt.x].dtype));
}

Status backward_rule(Rule& rule) {
  Shape logits;
  FUSEDOPS_TRY(linear_logits_rule(rule, kBackwardAt, &logits));
  FUSEDOPS_TRY(loss_backward_rule(rule, kLinearCrossEntropyBackward, kBackwardAt.x, logits));
  return gradients_rule(rule, kBackwardAt);
}

size_t loss_memory(const LinearLogits& linear) {
  return linear.dtype == DType::f64 ? LossMemory<double>(linear, nullptr).memory.taken()
                                    : LossMemory<float>(linear, nullptr).memory.taken();
}

size_t forward_workspace(const Call& call) {
  const bool keeps = kAt.any(call);
  const auto division = keeps ? LinearLogits::by_parts : LinearLogits::by_columns;
  const LinearLogits linear(call, kAt, division);
  if (!keeps) return sum_logits_workspace(linear);
  return loss_memory(linear) + LossProducts(call, kAt, division, nullptr).workspace();
}

size_t backward_workspace(const Call& call) {
  if (!has_unit_gradients<kLinearCrossEntropyBackward>(call.attributes, call.inputs[kBackwardAt.x]->dtype))
    return LossProducts(call, kBackwardAt, LinearLogits::by_columns, nullptr).workspace();
  const LossProducts products(call, kBackwardAt, LinearLogits::by_parts, nullptr);
  return products.any() ? loss_memory(products.linear) + products.workspace() : 0;
}

struct Cpu {
  template <class A>
  static Status check_labels(const LossRows<A>& rows, const Call& call) {
    return cpu::check_labels(rows, public_name(call.op));
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
  static Status sum_rows(const LossRows<A>& losses, const LinearLogits& linear, const LogitBlock<T>& block, T*,
                         const LossMemory<A>& memory, int64_t tile, const Context& context) {
    FUSEDOPS_TRY(multiply(linear.product(block), nullptr, context));
    return reduce_block(losses, block, memory, tile, context);
  }

  template <class A, class T>
  static Status reduce_block(const LossRows<A>& losses, const LogitBlock<T>& block, const LossMemory<A>& memory,
                             int64_t tile, const Context& context) {
    constexpr int64_t kTile = LossTiles::kTileBytes / sizeof(A);
    const bool is_plain = block.is_plain();
    for_each_row(block, context, [&](int64_t i) {
      A buffer[kTile];
      const int64_t row = block.row + i, label = losses.labels[row] - block.first_class;
      RowStats<A>* to = memory.tile_stats + row * memory.tiles + tile;
      for (int64_t j = 0; j < block.columns || j == 0; j += kTile) {
        const A* x = block.products + i * block.columns + j;
        const int64_t size = std::min(kTile, block.columns - j);
        if (!is_plain) {
#pragma GCC ivdep
          for (int64_t k = 0; k < size; ++k) buffer[k] = block.logit(x[k], j + k).value;
          x = buffer;
        }
        if (label >= j && label < j + size) memory.label_logits[row] = x[label - j];
        *to++ = cpu::row_stats(losses, x, block.first_class + j, size);
      }
    });
    return {};
  }

  template <class A>
  static Status count(const Losses<A>& losses, const LossMemory<A>&, const Call& call) {
    return cpu::store_count(losses, public_name(call.op));
  }

  template <class A>
  static Status finish_rows(const Losses<A>& losses, const LossMemory<A>& memory, int64_t row, int64_t rows,
                            const Context& context) {
    cpu::finish_rows(losses, row, rows, context, 50, memory.losses, sums_of(losses, memory), label_logit_of(memory));
    return {};
  }

  template <class A>
  static Status finish_total(const Losses<A>& losses, const LossMemory<A>& memory, const Context&) {
    cpu::finish_total(losses, memory.losses);
    return {};
  }

  template <class A>
  static Status finish(const Losses<A>& losses, const LossMemory<A>& memory, const Call& call) {
    return cpu::finish_losses(losses, public_name(call.op), call.context, 50, memory.losses, sums_of(losses, memory),
                              label_logit_of(memory));
  }

  template <class A, class T>
  static Status differentiate(const LossGradient<A>& gradient, const LogitBlock<T>& block, T* dz,
                              const Context& context) {
    for_each_row(block, context, [&](int64_t i) {
      const int64_t row = block.row + i, label = gradient.labels[row], at = label - block.first_class;
      const A* const x = block.products + i * block.stride;
      T* const to = dz + i * block.columns;
      if (gradient.is_zero(label)) {
        std::fill_n(to, block.columns, T{});
        return;
      }
      const auto derivative = gradient.derivative(row);
      const auto value = [&](int64_t j, A target) {
        const auto logit = block.logit(x[j], j);
        return derivative.with_entropy(logit.value, target) * logit.slope;
      };
      const bool has_label = at >= 0 && at < block.columns;
      // First: dz may have the memory of the sums.
      const A of_label_logit = has_label ? value(at, gradient.target_of_label(row, label)) : A(0);
      // The same numbers, without the branches that keep the loop from being vectorized.
      const bool is_plain = block.is_plain() && !gradient.has_shares() && !gradient.dentropy;
      A buffer[cpu::kBlock];
      for (int64_t start = 0; start < block.columns; start += cpu::kBlock) {
        const int64_t size = std::min(cpu::kBlock, block.columns - start);
        if (is_plain)
#pragma GCC ivdep
          for (int64_t j = 0; j < size; ++j) buffer[j] = derivative(x[start + j], gradient.uniform);
        else
#pragma GCC ivdep
          for (int64_t j = 0; j < size; ++j)
            buffer[j] = value(start + j, gradient.target(block.first_class + start + j));
        if constexpr (std::is_same_v<T, A>)
          std::copy_n(buffer, size, to + start);
        else
          cpu::narrow(buffer, to + start, size);
      }
      if (has_label) to[at] = from_compute<T>(of_label_logit);
    });
    return {};
  }

  static Status finish_sums(const Matmul& product, const void* sums, int64_t count, const Context& context) {
    return cpu::finish_sums(product, sums, count, context);
  }

  static Status copy(const ApartColumns& part, const Context& context) {
    constexpr int64_t kSize = sizeof(bf16);
    context.parallel_for(part.rows, part.columns / 8, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        std::memcpy(static_cast<char*>(part.to) + row * part.to_stride * kSize,
                    static_cast<const char*>(part.from) + row * part.columns * kSize, part.columns * kSize);
    });
    return {};
  }

 private:
  // Calls body(i) for each row of a block.
  template <class T, class Body>
  static void for_each_row(const LogitBlock<T>& block, const Context& context, Body&& body) {
    context.parallel_for(block.rows, 50 + block.columns, [&](int64_t begin, int64_t end) {
      cpu::run_widest([&] {
        for (int64_t i = begin; i < end; ++i) body(i);
      });
    });
  }

  template <class A>
  static auto sums_of(const Losses<A>& losses, const LossMemory<A>& memory) {
    return [&](int64_t row) { return losses.combined(memory.tile_stats + row * memory.tiles, memory.tiles); };
  }
  template <class A>
  static auto label_logit_of(const LossMemory<A>& memory) {
    return [&](int64_t row, int64_t) { return memory.label_logits[row]; };
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

Status linear_logits_rule(Rule& rule, const LinearArguments& at, Shape* logits) {
  return linear_rule(rule, at.x, at.weight, at.bias, rule.attributes[at.transpose_weight], logits);
}

size_t sum_logits_workspace(const LinearLogits& linear) { return loss_memory(linear) + linear.block_bytes(); }

template <class T>
Status sum_logits_cpu(const LinearLogits& linear, const LossRows<compute_t<T>>& rows,
                      const LossMemory<compute_t<T>>& memory, const Context& context) {
  return sum_logits<T, Cpu>(linear, rows, memory, context);
}

template <class T>
Status differentiate_logits_cpu(const LossProducts& products, const LossGradient<compute_t<T>>& gradient,
                                const Context& context) {
  return gradients_by_columns<T, Cpu>(products, gradient, context);
}

#define FUSEDOPS_INSTANTIATE(T)                                                         \
  template Status sum_logits_cpu<T>(const LinearLogits&, const LossRows<compute_t<T>>&, \
                                    const LossMemory<compute_t<T>>&, const Context&);   \
  template Status differentiate_logits_cpu<T>(const LossProducts&, const LossGradient<compute_t<T>>&, const Context&);
FUSEDOPS_INSTANTIATE(double)
FUSEDOPS_INSTANTIATE(float)
FUSEDOPS_INSTANTIATE(f16)
FUSEDOPS_INSTANTIATE(bf16)
#undef FUSEDOPS_INSTANTIATE

Status gradients_rule(Rule& rule, const GradientPlaces& at, bool may_compute) {
  const auto infer = [&](const GradientPlace& gradient, int input) -> Status {
    rule.outputs[gradient.output] = rule.gradient(input, may_compute && rule.attributes[gradient.asked], at.x);
    if (gradient.unit == kAbsent) return {};
    const Shape& unit = rule.inputs[gradient.unit];
    const bool is_empty = unit.ranked && unit.rank == 1 && unit.dims[0] == 0;
    return unit.present && !is_empty ? rule.same_as(gradient.unit, input) : Status();
  };
  FUSEDOPS_TRY(infer(at.dx, at.x));
  FUSEDOPS_TRY(infer(at.dweight, at.weight));
  return infer(at.dbias, at.bias);
}

Status scale_gradients(const Call& call, const GradientPlaces& at, bool scale_computed) {
  for (const GradientPlace& gradient : {at.dx, at.dweight, at.dbias}) {
    const View& to = call.outputs[gradient.output];
    if (!call.attributes[gradient.asked] || to.numel() == 0) continue;
    const View* const given = gradient.given(call);
    if (!given && !scale_computed) continue;
    SubCall<kScale> scale(call);
    scale.input<"x">() = given ? given : &to;
    scale.input<"factor">() = call.inputs[at.dloss];
    scale.output<"y">() = to;
    FUSEDOPS_TRY(scale.run(nullptr));
  }
  return {};
}

LinearLogits::LinearLogits(const Call& call, const LinearArguments& at, Division division) {
  const View &xs = *call.inputs[at.x], &weights = *call.inputs[at.weight];
  const View* const biases = call.inputs[at.bias];
  const bool transpose = call.attributes[at.transpose_weight];
  const Rows x_rows = as_rows(xs);
  dtype = xs.dtype;
  rows = x_rows.count, depth = x_rows.size, columns = weights.sizes[transpose ? 0 : 1];
  x = {xs.data, false, x_rows.stride, 0};
  weight = Matmul::Matrix::of(weights, transpose);
  bias = biases ? biases->data : nullptr;
  softcap = call.attributes.or_zero(at.softcap);
  temperature = at.temperature.index == kAbsent ? 1 : call.attributes[at.temperature];
  first_class = call.attributes.or_zero(at.first_class);

  const int64_t size = size_of(compute_dtype(dtype)), all_rows = std::max<int64_t>(rows, 1);
  // As many rows of this size as fit, in multiples, or the least number of rows.
  const auto rows_of = [&](int64_t bytes, int64_t row_bytes, int64_t multiple, int64_t least) {
    const int64_t most = bytes / std::max<int64_t>(row_bytes, 1);
    return std::min(most < std::max(multiple, least) ? std::max(most, least) : most / multiple * multiple, all_rows);
  };
  if (division != by_columns) {
    constexpr int64_t kRows = LossTiles::kBlockRows;
    const ChunkSize& chunk = call.context.cuda ? kChunkOnGpu : kChunkOnCpu;
    block_columns = std::max<int64_t>(columns, 1);
    chunk_rows = rows_of(chunk.dz_bytes, columns * size_of(dtype), kRows, chunk.least_rows);
    const bool is_narrow = compute_dtype(dtype) != dtype;  // otherwise the sums have the memory of dz
    block_rows = is_narrow ? rows_of(chunk.sum_bytes, columns * size, kRows, kRows) : chunk_rows;
    return;
  }
  const int64_t tile = LossTiles::kTileBytes / size;
  const int64_t tiles = kGradientBytes / (all_rows * size_of(dtype) * tile);
  constexpr int64_t kRows = 128;  // rows of a tile of the product
  block_columns = std::max<int64_t>(tiles, 1) * tile;
  block_rows = rows_of(kBlockBytes, std::min(block_columns, columns) * size, kRows, 1);
  chunk_rows = all_rows;
}

LossProducts::LossProducts(const Call& call, const GradientPlaces& at, LinearLogits::Division division, void* workspace)
    : linear(call, at, division),
      need_dx(at.dx.is_computed(call)),
      need_dweight(at.dweight.is_computed(call)),
      need_dbias(linear.bias && at.dbias.is_computed(call)),
      call_(call),
      at_(at),
      memory_(workspace),
      dx_(call.outputs[at.dx.output].data) {
  const DType wide = compute_dtype(linear.dtype);
  const bool is_narrow = wide != linear.dtype;
  if (division == LinearLogits::by_parts) divide();
  const int64_t dz_columns = has_parts() ? starts_[1] : std::min(linear.block_columns, linear.columns);
  const int64_t dx_bytes = linear.chunk_rows * linear.depth * size_of(wide);
  const bool sums_dx = need_dx && is_narrow && (has_parts() || !linear.is_one_block());
  const bool shares_sums = sums_dx && has_parts();  // no sums of logits are left when dx is summed
  if (any() || !is_narrow) dz_ = memory_.take(linear.chunk_rows * dz_columns * size_of(linear.dtype));
  if (is_narrow) sums_ = memory_.take(std::max(linear.block_bytes(), shares_sums ? dx_bytes : 0));
  if (sums_dx) dx_sums_ = shares_sums ? sums_ : memory_.take(dx_bytes);
  if (has_apart_columns()) dweight_apart_ = memory_.take(linear.depth * apart_columns() * size_of(linear.dtype));
  if (linear.chunks() == 1) return;
  const int64_t size = linear.columns * linear.depth;
  if (need_dweight && linear.dtype == DType::bf16) dweight_low_ = memory_.take(size * sizeof(uint16_t));
  if (need_dweight && linear.dtype == DType::f16) dweight_sums_ = memory_.take(size * sizeof(float));
  if (need_dbias) dbias_sums_ = memory_.take(linear.chunks() * linear.columns * size_of(wide));
}

// If dz of all rows exists, dW takes one product for each part of the columns, and no lower halves. The workspace has
// dz of the first part. dz of the others lies where dW of earlier columns will: when dW of a part is stored, the memory
// before it has dz of this part and of the earlier ones. Without dW chunks are better, since dx is then one product.
void LossProducts::divide() {
  if (linear.dtype != DType::bf16 || !need_dweight || linear.chunks() == 1 || !linear.is_one_block()) return;
  if (!call_.attributes[at_.transpose_weight]) return divide_strided();
  constexpr int64_t kMultiple = LinearLogits::kMultiple;
  const int64_t columns = linear.columns, rows = linear.rows, depth = linear.depth;
  const double ratio = double(depth) / double(rows);
  // At least a sixteenth, so that its dz has room for the sums of fine tiles.
  const auto least = int64_t(double(columns) / std::min(1 + ratio + ratio * ratio, 16.0));
  int64_t first = least / kMultiple * kMultiple, second;
  do {
    first += kMultiple;
    second = std::min(first + first * depth / rows / kMultiple * kMultiple, columns);
  } while (first < columns && second < columns && (columns - first) * rows > second * depth);
  if (first >= columns || rows * first > elements_of_chunks()) return;
  starts_[1] = first, starts_[2] = second;
  linear.chunk_rows = rows;
}

// dW of a part is not one piece of memory if dW is [in, classes]. All dz is in the workspace if that has room.
// Otherwise dz of the last columns lies in dW, and the workspace has their dW, which is copied when dz has been read.
// The fewest columns that make room are copied.
void LossProducts::divide_strided() {
  constexpr int64_t kMultiple = LinearLogits::kMultiple;
  const int64_t columns = linear.columns, rows = linear.rows, depth = linear.depth;
  const int64_t excess = rows * columns - elements_of_chunks();  // positive only if rows > depth
  if (excess > 0) {
    const int64_t first = (columns - (excess + rows - depth - 1) / (rows - depth)) / kMultiple * kMultiple;
    if (first <= columns / 16 || (columns - first) * rows > columns * depth) return;
    starts_[1] = first, starts_[2] = columns;
  }
  linear.chunk_rows = rows;
}

// Memory for dz of a chunk of rows and the lower halves of dW.
int64_t LossProducts::elements_of_chunks() const {
  const int64_t bytes = (call_.context.cuda ? LinearLogits::kChunkOnGpu : LinearLogits::kChunkOnCpu).dz_bytes;
  return linear.columns * linear.depth + bytes / size_of(linear.dtype);
}

void* LossProducts::dz_of(const GradientBlock& block) const {
  const int64_t size = size_of(linear.dtype);
  if (!has_parts() || block.column == 0) return static_cast<char*>(dz_) + first_element(block.rows, block) * size;
  void* const dweight = call_.outputs[at_.dweight.output].data;
  return static_cast<char*>(dweight) + block.rows * (block.column - starts_[1]) * size;
}

Matmul::Matrix LossProducts::dz_matrix(const GradientBlock& block) const {
  return {dz_of(block), false, block.columns, 0};
}

Matmul LossProducts::dweight(const GradientBlock& block) const {
  const bool transpose = call_.attributes[at_.transpose_weight];
  const Matmul::Matrix dz = dz_matrix(block), x = linear.x.from(block.row, 0, linear.dtype);
  const int64_t first = transpose ? block.column * linear.depth : block.column;
  const bool is_apart = has_apart_columns() && block.column == starts_[1];
  void* const to = is_apart ? dweight_apart_
                   : dweight_sums_
                       ? static_cast<char*>(dweight_sums_) + first * sizeof(float)
                       : static_cast<char*>(call_.outputs[at_.dweight.output].data) + first * size_of(linear.dtype);
  Matmul product = transpose ? Matmul(linear.dtype, 1, block.columns, linear.depth, block.rows, dz.turned(), x, to)
                             : Matmul(linear.dtype, 1, linear.depth, block.columns, block.rows, x.turned(), dz, to);
  product.c_stride = transpose ? linear.depth : is_apart ? block.columns : linear.columns;
  if (linear.chunks() == 1) return product;
  const bool is_first = block.row == 0, is_last = block.row + block.rows == linear.rows;
  if (linear.dtype != DType::bf16) return product.to_sums(/*add=*/!is_first);
  // Without memory only the size of the product's workspace is computed, for which any lower halves do.
  void* const low = dweight_low_ ? static_cast<uint16_t*>(dweight_low_) + first : to;
  return product.to_halves(low, !is_first, is_last);
}

Matmul LossProducts::dx_product(const GradientBlock& block, void* to) const {
  return {linear.dtype,
          1,
          block.rows,
          linear.depth,
          block.columns,
          dz_matrix(block),
          linear.weight.from(0, block.column, linear.dtype).turned(),
          to};
}

Matmul LossProducts::dx(const GradientBlock& block) const {
  if (linear.is_one_block() && !has_parts()) return dx_product(block, dx_at(block.row));
  const bool is_first = has_parts() ? block.column + block.columns == linear.columns : block.column == 0;
  return dx_product(block, dx_sums_ ? dx_sums_ : dx_at(block.row)).to_sums(/*add=*/!is_first).without_workspace();
}

// Passes body a call of bias_act_backward for the sum of dz over the rows of a block.
template <class Body>
auto LossProducts::with_dbias(const GradientBlock& block, Body&& body) const {
  const int64_t stride = 1;
  const MatrixView gradient(linear.dtype, block.rows, block.columns, block.columns,
                            const_cast<void*>(dz_matrix(block).data));
  const auto part = [&](void* data, DType dtype, int64_t first) {
    return View{data ? static_cast<char*>(data) + first * size_of(dtype) : nullptr, dtype, 1, &block.columns, &stride};
  };
  const DType wide = compute_dtype(linear.dtype);
  const int64_t chunk = block.row / linear.chunk_rows;
  const View dbias = dbias_sums_ ? part(dbias_sums_, wide, chunk * linear.columns + block.column)
                                 : part(call_.outputs[at_.dbias.output].data, linear.dtype, block.column);
  SubCall<kBiasActBackward> sum(call_);
  set_row_sum(sum, gradient, &dbias, dbias);  // bias has the dtype of dbias, and is not read for the identity
  return body(sum);
}

Status LossProducts::run_dbias(const GradientBlock& block) const {
  return with_dbias(block, [&](auto& sum) { return sum.run(rest()); });
}

ApartColumns LossProducts::apart_dweight() const {
  if (!has_apart_columns()) return {};
  const int64_t size = size_of(linear.dtype);
  char* const to = static_cast<char*>(call_.outputs[at_.dweight.output].data) + starts_[1] * size;
  return {dweight_apart_, to, linear.depth, apart_columns(), linear.columns};
}

Matmul LossProducts::whole_dweight() const {
  return {linear.dtype, 1, linear.columns, linear.depth, 0, {}, {}, call_.outputs[at_.dweight.output].data};
}

Matmul LossProducts::whole_dbias() const {
  return {linear.dtype, 1, 1, linear.columns, 0, {}, {}, call_.outputs[at_.dbias.output].data};
}

size_t LossProducts::workspace() const {
  size_t most = 0;
  const bool on_gpu = call_.context.cuda;  // products on the CPU need no workspace
  (void)linear.for_each_chunk([&](int64_t row, int64_t rows) {
    return linear.for_each_column_block([&](int64_t column, int64_t columns) {
      return for_each_part({row, rows, column, columns}, [&](const GradientBlock& part) {
        if (need_dx && on_gpu) most = std::max(most, dx(part).workspace());
        if (need_dweight && on_gpu) most = std::max(most, dweight(part).workspace());
        if (need_dbias) most = std::max(most, with_dbias(part, [](auto& sum) { return sum.workspace(); }));
        return Status();
      });
    });
  });
  return memory_.taken() + most;
}

Operator linear_cross_entropy() {
  return with_backward(
      kLinearCrossEntropy, kLinearCrossEntropyBackward,
      {.rule = forward_rule, .workspace = forward_workspace, .cpu = forward_cpu, .cuda = linear_cross_entropy_cuda});
}

Operator linear_cross_entropy_backward() {
  return {kLinearCrossEntropyBackward,
          {.rule = backward_rule,
           .workspace = backward_workspace,
           .cpu = backward_cpu,
           .cuda = linear_cross_entropy_backward_cuda}};
}

}  // namespace fusedops
