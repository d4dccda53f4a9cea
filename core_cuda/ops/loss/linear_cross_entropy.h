// linear_cross_entropy: the cross entropy of the logits softcap(x W^T + bias), computed a block of logits at a time, so
// that the full logits are never materialized. softcap(z) = c tanh(z / c), or z without a cap.
//
// The forward computes three sums over each row of logits (losses.h). The backward recomputes the logits. For a block
// of columns it computes dz, the gradient of the sums, in x's dtype. dW = dz^T x is then complete for these columns,
// and dx is summed over the blocks in the compute type. That is four products instead of three, but memory for one
// block instead of all logits and their gradients.
#pragma once

#include "core/common/formulas.h"
#include "core/declaration/sub_call.h"
#include "ops/loss/losses.h"
#include "ops/products/matmul.h"

namespace fusedops {

// W is [classes, in], or [in, classes] if transpose_weight is false.
inline constexpr Signature kLinearCrossEntropy{
    .name = "linear_cross_entropy",
    .inputs = {{.name = "x", .layout = Layout::rows_apart},
               {.name = "weight", .layout = Layout::matrix, .parameter = true},
               {.name = "labels"},
               {.name = "bias", .kind = Kind::optional, .parameter = true}},
    .outputs = {{"loss", "compute(x)"}, {"lse", "compute(x)", /*saved=*/true}, {"count", "compute(x)", /*saved=*/true}},
    .attributes = {{"ignore_index", Type::i64, "-100"},
                   {.name = "label_smoothing", .value = "0.0", .bounds = kUnitInterval},
                   {"reduction", Type::string, "mean", kReductions},
                   {.name = "softcap", .value = "0.0", .bounds = kFiniteNotNegative},
                   {"transpose_weight", Type::boolean, "true"},
                   {.name = "first_class", .type = Type::i64, .value = "0", .bounds = kNotNegative},
                   {.name = "classes", .type = Type::i64, .value = "0", .bounds = kNotNegative}},
    .axes = {{"...K, Kv^transpose_weight, ..., v -> ..., ...L, 1/...; v@first_class/classes", "reduction=none"},
             {"...K, Kv^transpose_weight, ..., v -> 1/..., ...L, 1/...; v@first_class/classes", "reduction=sum"},
             {"...K, Kv^transpose_weight, ..., v -> 1/...:count, ...L, 1/...; v@first_class/classes",
              "reduction=mean"}},
};

Operator linear_cross_entropy();
FUSEDOPS_CUDA_KERNEL Status linear_cross_entropy_cuda(const Call& call);

// Gradients that are not needed are empty.
inline constexpr Signature kLinearCrossEntropyBackward{
    .name = "linear_cross_entropy_backward",
    .inputs = {{"dloss"},
               {.name = "x", .layout = Layout::rows_apart},
               {.name = "weight", .layout = Layout::matrix, .parameter = true},
               {.name = "labels"},
               {.name = "bias", .kind = Kind::optional, .parameter = true},
               {.name = "lse"},
               {.name = "count"}},
    .outputs = {{"dx", "x"}, {"dweight", "weight"}, {"dbias", "bias"}},
    .attributes = {{"ignore_index", Type::i64, "-100"},
                   {.name = "label_smoothing", .value = "0.0", .bounds = kUnitInterval},
                   {"reduction", Type::string, "mean", kReductions},
                   {.name = "softcap", .value = "0.0", .bounds = kFiniteNotNegative},
                   {"transpose_weight", Type::boolean, "true"},
                   {.name = "first_class", .type = Type::i64, .value = "0", .bounds = kNotNegative},
                   {.name = "classes", .type = Type::i64, .value = "0", .bounds = kNotNegative},
                   {"need_dx", Type::boolean, "true"},
                   {"need_dweight", Type::boolean, "true"},
                   {"need_dbias", Type::boolean, "true"}},
    .axes = {{"..., ...K, Kv^transpose_weight, ..., v, ...L, 1/... -> ...K/v, Kv^transpose_weight/..., v/...; "
              "v@first_class/classes",
              "reduction=none"},
             {"1, ...K, Kv^transpose_weight, ..., v, ...L, 1/... -> ...K/v, Kv^transpose_weight/..., v/...; "
              "v@first_class/classes",
              "reduction=sum"},
             {"1, ...K, Kv^transpose_weight, ..., v, ...L, 1 -> ...K/v, Kv^transpose_weight/..., v/...; "
              "v@first_class/classes",
              "reduction=mean"}},
};

Operator linear_cross_entropy_backward();
FUSEDOPS_CUDA_KERNEL Status linear_cross_entropy_backward_cuda(const Call& call);

// Argument indices of the inputs of the logits.
struct LinearArguments {
  int x, weight, bias;
  AttributeIndex<double> softcap;
  AttributeIndex<bool> transpose_weight;
  AttributeIndex<int64_t> first_class;

  consteval LinearArguments(const Signature& op)
      : x(input_of(op, "x")),
        weight(input_of(op, "weight")),
        bias(input_of(op, "bias")),
        softcap(attribute_of<double>(op, "softcap")),
        transpose_weight(attribute_of<bool>(op, "transpose_weight")),
        first_class(attribute_of<int64_t>(op, "first_class")) {}
};

// A block of the logits, as sums before bias and cap.
template <class T>
struct LogitBlock {
  using A = compute_t<T>;

  A* products;  // [rows, columns]
  int64_t row, rows;
  int64_t first_class, columns;  // first_class: class of the first column
  const T* bias;                 // of these columns; null: none
  A cap, inverse_cap;            // 0: none

  // The logit of a sum in column i of the block, and its derivative by the sum.
  FUSEDOPS_HD Activated<A> logit(A sum, int64_t i) const {
    const A z = bias ? sum + to_compute(bias[i]) : sum;
    if (cap == 0) return {z, A(1)};
    const auto t = activations::tanh_(z * inverse_cap);
    return {cap * t.value, t.slope};
  }
};

// The product of the logits, and its division into blocks, which depends on the shape alone.
struct LinearLogits {
  LinearLogits(const Call& call, const LinearArguments& at);

  // End of the block that begins at `column`. Columns behind the last multiple of kMultiple form a separate block, so
  // that the rows of the others are aligned for TMA.
  int64_t end(int64_t column) const {
    const int64_t whole = columns - columns % kMultiple;
    return column < whole ? std::min(column + block_columns, whole) : columns;
  }
  bool is_one_block() const { return end(0) == columns; }

  // Calls body(column, columns) for each block of columns; at least once.
  template <class Body>
  Status for_each_column_block(Body&& body) const {
    int64_t column = 0;
    do {
      FUSEDOPS_TRY(body(column, end(column) - column));
      column = end(column);
    } while (column < columns);
    return {};
  }

  // Calls body(row, rows) for each block of rows.
  template <class Body>
  Status for_each_row_block(Body&& body) const {
    for (int64_t row = 0; row < rows; row += block_rows) FUSEDOPS_TRY(body(row, std::min(block_rows, rows - row)));
    return {};
  }

  template <class T>
  LogitBlock<T> block(int64_t row, int64_t rows, int64_t column, int64_t columns, compute_t<T>* sums) const {
    using A = compute_t<T>;
    const T* const bias_of_block = bias ? static_cast<const T*>(bias) + column : nullptr;
    const A cap(softcap), inverse_cap(softcap ? 1 / softcap : 0);
    return {sums, row, rows, first_class + column, columns, bias_of_block, cap, inverse_cap};
  }
  template <class T>
  Matmul product(const LogitBlock<T>& block) const {
    Matmul sums(dtype, 1, block.rows, block.columns, depth, x.from(block.row, 0, dtype),
                weight.from(0, block.first_class - first_class, dtype), block.products);
    return sums.to_sums(/*add=*/false).without_workspace();
  }

  int64_t block_bytes() const { return block_rows * std::min(block_columns, columns) * size_of(compute_dtype(dtype)); }

  static constexpr int64_t kMultiple = 64;
  // kBlockBytes: the sums of a block stay in the L2 cache of a large GPU. kGradientBytes: size of dz, unless a minimum
  // of columns exceeds it; each block of columns reads and writes the sums of dx.
  static constexpr int64_t kBlockBytes = 32 << 20, kGradientBytes = 128 << 20;

  DType dtype;
  int64_t rows, depth, columns;
  int64_t first_class;
  int64_t block_rows, block_columns;
  Matmul::Matrix x, weight;  // [rows, depth] and [depth, columns]
  const void* bias;
  double softcap;
};

// Buffers of the forward. Without memory it only computes the size.
template <class A>
struct LossMemory {
  LossMemory(const LinearLogits& linear, void* workspace) : memory(workspace) {
    (void)linear.for_each_column_block([&](int64_t, int64_t columns) {
      tiles += LossTiles(linear.rows, columns, compute_dtype(linear.dtype)).tiles;
      return Status();
    });
    const LossTiles all(linear.rows, linear.columns, compute_dtype(linear.dtype));
    const auto take = [&](int64_t count) { return static_cast<A*>(memory.take(count * sizeof(A))); };
    tile_stats = reinterpret_cast<RowStats<A>*>(take(4 * linear.rows * tiles));
    label_logits = take(linear.rows);
    losses = take(linear.rows);
    totals = take(2 * all.blocks);
    sums = static_cast<A*>(memory.take(linear.block_bytes()));
  }

  WorkspaceAllocator memory;
  int64_t tiles = 0;         // tiles of a row, over all blocks
  RowStats<A>* tile_stats;   // [rows, tiles]
  A *label_logits, *losses;  // [rows]
  A* totals;
  A* sums;  // one block of logits
};

// The products of the backward for dz [rows, columns] of a block of columns.
class LossProducts {
 public:
  // A null workspace is allowed, to compute the size.
  LossProducts(const Call& call, void* workspace);

  // dW of the block, dx or its contribution from the block, and dbias of the block.
  Matmul dweight(int64_t column, int64_t columns) const;
  Matmul dx(int64_t column, int64_t columns) const;
  Matmul dx_of_all_columns() const { return dx_product(0, linear.columns, dx_); }
  Status run_dbias(int64_t column, int64_t columns) const;

  size_t workspace() const;
  void* rest() const { return memory_.rest(); }

  LinearLogits linear;
  bool need_dx, need_dweight, need_dbias;
  void *sums, *dz;
  void* dx_sums = nullptr;  // accumulator of dx, if there are several blocks and dx is narrower than the compute type

 private:
  Matmul dx_product(int64_t column, int64_t columns, void* to) const;
  template <class Body>
  auto with_dbias(int64_t column, int64_t columns, Body&& body) const;

  const Call& call_;
  WorkspaceAllocator memory_;
  void* dx_;
};

}  // namespace fusedops
