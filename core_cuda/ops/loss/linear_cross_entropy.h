// linear_cross_entropy: the cross entropy of the logits softcap(x W^T + bias), computed a block of logits at a time, so
// that the full logits are never materialized. softcap(z) = c tanh(z / c), or z without a cap.
//
// The forward computes statistics of each row of logits (losses.h), and, if asked, the gradients for an upstream
// gradient of 1. It takes a chunk of rows at a time: the logits of the chunk, the sums and losses of its rows, dz,
// which is the gradient of the logits' sums in x's dtype, then dx = dz W of these rows, and dW += dz^T x. These are the
// three products that a loss with all logits has. Between the chunks dW is in float32: see Matmul::to_halves for bf16.
// If dz of all rows takes no more memory than these sums, partly in the memory of dW, all rows are one chunk.
// The backward scales the gradients. Without them it computes them in the same way, with the same bits.
//
// Three kinds of calls need more than their own logits before dz is rounded: losses without a reduction, whose rows
// have different upstream gradients; float16, where the loss scale keeps dz from underflowing; and a part of the
// classes, which needs the log-sum-exp of all. Their gradients are computed in the backward, a block of columns at a
// time: dW = dz^T x is then complete for these columns, and dx is summed over the blocks in the compute type.
#pragma once

#include "core/common/formulas.h"
#include "core/declaration/sub_call.h"
#include "ops/loss/losses.h"
#include "ops/products/matmul.h"

namespace fusedops {

// Options of the operators of logits. The temperature divides them.
inline constexpr Attribute kTemperature{.name = "temperature", .value = "1.0", .bounds = kFinitePositive},
    kSoftcap{.name = "softcap", .value = "0.0", .bounds = kFiniteNotNegative};

// The gradients of a loss for an upstream gradient of 1, if its forward has kept them.
inline constexpr InputList kUnitGradients{{.name = "unit_dx", .kind = Kind::optional},
                                          {.name = "unit_dweight", .kind = Kind::optional, .parameter = true},
                                          {.name = "unit_dbias", .kind = Kind::optional, .parameter = true}};

// Gradients that are not needed are empty. Kept ones are scaled, which takes no time in place if dloss is 1.
inline constexpr ShortList<Output, kMaxOutputs> kScaledGradients{
    {.name = "dx", .dtype = "x", .overwrites = "unit_dx"},
    {.name = "dweight", .dtype = "weight", .overwrites = "unit_dweight"},
    {.name = "dbias", .dtype = "bias", .overwrites = "unit_dbias"}};

inline constexpr AttributeList kLinearCrossEntropyOptions{
    kIgnoreIndex, kLabelSmoothing, kReductionOfRows, kSoftcap, kTransposeWeightAttribute,
    kZLoss,       kFirstClass,     kClasses};

// W is [classes, in], or [in, classes] if transpose_weight is false. unit_dx, unit_dweight and unit_dbias are the
// gradients for an upstream gradient of 1, empty unless keep_dx and so on are true. They are empty, too, for calls that
// need their upstream gradient first.
inline constexpr Signature kLinearCrossEntropy{
    .name = "linear_cross_entropy",
    .inputs = {matrix_of_rows("x"),
               weight_matrix("weight"),
               {"labels"},
               optional_parameter("bias"),
               optional_parameter("class_weight")},
    .outputs = {{"loss", "compute(x)"},
                {"lse", "compute(x)", /*saved=*/true},
                {"count", "compute(x)", /*saved=*/true},
                {"unit_dx", "x", /*saved=*/true},
                {"unit_dweight", "weight", /*saved=*/true},
                {"unit_dbias", "bias", /*saved=*/true}},
    .attributes = with_flags(kLinearCrossEntropyOptions, {"keep_dx", "keep_dweight", "keep_dbias"}, "false"),
    .axes =
        {{"...K, Kv^transpose_weight, ..., v, V -> ..., ...L, 1/..., ...K/v, Kv^transpose_weight/..., v/...; "
          "v@first_class/classes",
          "reduction=none keep_dx=false keep_dweight=false keep_dbias=false"},
         {"...K, Kv^transpose_weight, ..., v, V -> 1/..., ...L, 1/..., ...K/v, Kv^transpose_weight/..., v/...; "
          "v@first_class/classes",
          "reduction=sum keep_dx=false keep_dweight=false keep_dbias=false"},
         {"...K, Kv^transpose_weight, ..., v, V -> 1/...:count, ...L, 1/..., ...K/v, Kv^transpose_weight/..., v/...; "
          "v@first_class/classes",
          "reduction=mean keep_dx=false keep_dweight=false keep_dbias=false"},
         {"...K, KV^transpose_weight, ..., V, V -> 1/..., ...L, 1/..., ...K, KV^transpose_weight/..., V/...",
          "reduction=sum"},
         {"...K, KV^transpose_weight, ..., V, V -> 1/...:count, ...L, 1/..., ...K:count, "
          "KV^transpose_weight/...:count, V/...:count",
          "reduction=mean !class_weight"},
         // Else a part of weight 0 may have a gradient.
         {"...K, KV^transpose_weight, ..., V, V -> 1/...:count, ...L, 1/..., ...K:count, "
          "KV^transpose_weight/...:count, V/...:count",
          "reduction=mean label_smoothing=0.0 z_loss=0.0"}},
    .autocast = true,
};

Operator linear_cross_entropy();
FUSEDOPS_CUDA_KERNEL Status linear_cross_entropy_cuda(const Call& call);

inline constexpr Signature kLinearCrossEntropyBackward{
    .name = "linear_cross_entropy_backward",
    .inputs = InputList{{"dloss"},
                        matrix_of_rows("x"),
                        weight_matrix("weight"),
                        {"labels"},
                        optional_parameter("bias"),
                        {"lse"},
                        {"count"},
                        optional_parameter("class_weight")}
                  .with(kUnitGradients),
    .outputs = kScaledGradients,
    .attributes = with_needs(kLinearCrossEntropyOptions, {"need_dx", "need_dweight", "need_dbias"}),
    .axes = {{"..., ...K, Kv^transpose_weight, ..., v, ...L, 1/..., V, ...K/v, Kv^transpose_weight, v -> ...K/v, "
              "Kv^transpose_weight/..., v/...; v@first_class/classes",
              "reduction=none"},
             {"1, ...K, Kv^transpose_weight, ..., v, ...L, 1/..., V, ...K/v, Kv^transpose_weight, v -> ...K/v, "
              "Kv^transpose_weight/...|unit_dweight, v/...|unit_dbias; v@first_class/classes",
              "reduction=sum"},
             {"1, ...K, Kv^transpose_weight, ..., v, ...L, 1, V, ...K/v, Kv^transpose_weight, v -> ...K/v, "
              "Kv^transpose_weight/...|unit_dweight, v/...|unit_dbias; v@first_class/classes",
              "reduction=mean"}},
};

Operator linear_cross_entropy_backward();
FUSEDOPS_CUDA_KERNEL Status linear_cross_entropy_backward_cuda(const Call& call);

// Argument indices of the inputs of the logits.
struct LinearArguments {
  int x, weight, bias;
  AttributeIndex<double> softcap, temperature;
  AttributeIndex<bool> transpose_weight;
  AttributeIndex<int64_t> first_class;

  consteval LinearArguments(const Signature& op, const char* x = "x", const char* weight = "weight",
                            const char* bias = "bias")
      : x(input_of(op, x)),
        weight(input_of(op, weight)),
        bias(input_of(op, bias)),
        softcap(find_attribute<double>(op, "softcap")),
        temperature(find_attribute<double>(op, "temperature")),
        transpose_weight(attribute_of<bool>(op, "transpose_weight")),
        first_class(find_attribute<int64_t>(op, "first_class")) {}
};

// A gradient of an operator: its output, the attribute that asks for it, and the input that may have it for an upstream
// gradient of 1.
struct GradientPlace {
  int output;
  AttributeIndex<bool> asked;
  int unit = kAbsent;

  const View* given(const Call& call) const {
    const View* const view = call.find(unit);
    return view && view->numel() > 0 ? view : nullptr;
  }
  bool is_computed(const Call& call) const {
    return call.attributes[asked] && call.outputs[output].numel() > 0 && !given(call);
  }
};

struct GradientPlaces : LinearArguments {
  GradientPlace dx, dweight, dbias;
  int dloss = kAbsent;

  bool any(const Call& call) const {
    return dx.is_computed(call) || dweight.is_computed(call) || dbias.is_computed(call);
  }
};

consteval GradientPlace gradient_place(const Signature& op, const char* output, const char* asked,
                                       const char* unit = "") {
  return {output_of(op, output), attribute_of<bool>(op, asked), find_input(op, unit)};
}

// The gradients that a forward keeps, and those of a backward.
consteval GradientPlaces kept_gradients(const Signature& op) {
  return {op, gradient_place(op, "unit_dx", "keep_dx"), gradient_place(op, "unit_dweight", "keep_dweight"),
          gradient_place(op, "unit_dbias", "keep_dbias")};
}
consteval GradientPlaces needed_gradients(const Signature& op) {
  return {op, gradient_place(op, "dx", "need_dx", "unit_dx"),
          gradient_place(op, "dweight", "need_dweight", "unit_dweight"),
          gradient_place(op, "dbias", "need_dbias", "unit_dbias"), find_input(op, "dloss")};
}

inline constexpr GradientPlaces kKeptGradients = kept_gradients(kLinearCrossEntropy);
inline constexpr GradientPlaces kNeededGradients = needed_gradients(kLinearCrossEntropyBackward);

// True if a call with these attributes may compute dz before its upstream gradient is known.
template <const Signature& kOp>
bool has_unit_gradients(const Attributes& attributes, DType dtype) {
  const bool has_all_classes = attributes.or_zero(find_attribute<int64_t>(kOp, "classes")) == 0;
  return attributes[attribute_of<std::string>(kOp, "reduction")] != "none" && dtype != DType::f16 && has_all_classes;
}

// Infers the shapes of the gradients, and checks the given unit gradients. `may_compute`: false if all are empty.
Status gradients_rule(Rule& rule, const GradientPlaces& at, bool may_compute = true);

// Multiplies the given unit gradients by the upstream gradient, and the computed ones if scale_computed.
Status scale_gradients(const Call& call, const GradientPlaces& at, bool scale_computed);

// Checks x, weight and bias, and infers the shape of the logits.
Status linear_logits_rule(Rule& rule, const LinearArguments& at, Shape* logits);

// A block of the logits, as sums before bias and cap.
template <class T>
struct LogitBlock {
  using A = compute_t<T>;

  A* products;  // [rows, columns], `stride` apart
  int64_t row, rows;
  int64_t first_class, columns;  // first_class: class of the first column
  int64_t stride;
  const T* bias;       // of these columns; null: none
  A cap, inverse_cap;  // 0: none
  A factor;            // 1 / temperature

  // The logit of a sum in column i of the block, and its derivative by the sum.
  FUSEDOPS_HD Activated<A> logit(A sum, int64_t i) const {
    const A z = bias ? sum + to_compute(bias[i]) : sum;
    if (cap == 0) return {z * factor, factor};
    const auto t = activations::tanh_(z * inverse_cap);
    return {cap * t.value * factor, t.slope * factor};
  }

  // Columns from `column` on.
  LogitBlock part(int64_t column, int64_t count) const {
    LogitBlock result = *this;
    result.products += column, result.first_class += column, result.columns = count;
    if (bias) result.bias += column;
    return result;
  }

  FUSEDOPS_HD bool is_plain() const { return !bias && cap == 0 && factor == 1; }  // the sums are the logits
};

// The product of the logits, and its division into blocks, which depends on the shape and the kind of device alone.
struct LinearLogits {
  // by_columns: blocks of columns, each with all rows. by_rows: chunks of rows, each with all columns. by_parts: the
  // same, but LossProducts may make all rows one chunk, with dz in parts.
  enum Division { by_columns, by_rows, by_parts };

  LinearLogits(const Call& call, const LinearArguments& at, Division division);

  // End of the block that begins at `column`. Columns behind the last multiple of kMultiple form a separate block, so
  // that the rows of the others are aligned for TMA.
  int64_t end(int64_t column) const {
    const int64_t whole = columns - columns % kMultiple;
    return column < whole ? std::min(column + block_columns, whole) : columns;
  }
  bool is_one_block() const { return end(0) == columns; }
  bool is_one_chunk() const { return rows <= chunk_rows; }
  int64_t chunks() const { return std::max<int64_t>((rows + chunk_rows - 1) / chunk_rows, 1); }

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

  // Calls body(row, rows) for each chunk of rows; at least once.
  template <class Body>
  Status for_each_chunk(Body&& body) const {
    int64_t row = 0;
    do {
      FUSEDOPS_TRY(body(row, std::min(chunk_rows, rows - row)));
      row += chunk_rows;
    } while (row < rows);
    return {};
  }

  // Calls body(row, rows) for each block of `rows` rows from `first` on.
  template <class Body>
  Status for_each_row_block(int64_t first, int64_t rows, Body&& body) const {
    for (int64_t row = first; row < first + rows; row += block_rows)
      FUSEDOPS_TRY(body(row, std::min(block_rows, first + rows - row)));
    return {};
  }

  template <class T>
  LogitBlock<T> block(int64_t row, int64_t rows, int64_t column, int64_t columns, compute_t<T>* sums) const {
    using A = compute_t<T>;
    const T* const bias_of_block = bias ? static_cast<const T*>(bias) + column : nullptr;
    const A cap(softcap), inverse_cap(softcap ? 1 / softcap : 0), factor(1 / temperature);
    return {sums, row, rows, first_class + column, columns, columns, bias_of_block, cap, inverse_cap, factor};
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
  // by_rows: sizes of dz and of the sums, unless a minimum of rows exceeds them. Each chunk reads and writes the sums
  // of dW, which on a GPU takes as long as a product over 800 rows, and each block of sums reads W.
  struct ChunkSize {
    int64_t dz_bytes, least_rows, sum_bytes;
  };
  static constexpr ChunkSize kChunkOnGpu = {512 << 20, 1024, 256 << 20}, kChunkOnCpu = {64 << 20, 256, 64 << 20};

  DType dtype;
  int64_t rows, depth, columns;
  int64_t first_class;
  int64_t block_rows, block_columns;  // of the sums
  int64_t chunk_rows;                 // of dz
  Matmul::Matrix x, weight;           // [rows, depth] and [depth, columns]
  const void* bias;
  double softcap, temperature;
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
  }

  WorkspaceAllocator memory;
  int64_t tiles = 0;         // tiles of a row, over all blocks
  RowStats<A>* tile_stats;   // [rows, tiles]
  A *label_logits, *losses;  // [rows]
  A* totals;
};

// A block of dz: the rows of a chunk, and columns.
struct GradientBlock {
  int64_t row, rows, column, columns;
};

// Columns of a matrix of bf16 in a matrix of their own, [rows, columns], and their place, `to_stride` between its rows.
struct ApartColumns {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t rows = 0, columns = 0, to_stride = 0;
};

// The buffers and products that compute gradients from dz.
class LossProducts {
 public:
  // A null workspace is allowed, to compute the size.
  LossProducts(const Call& call, const GradientPlaces& at, LinearLogits::Division division, void* workspace);

  bool any() const { return need_dx || need_dweight || need_dbias; }

  // dz of the rows from `row` on.
  template <class T>
  T* dz(const GradientBlock& block, int64_t row) const {
    return static_cast<T*>(dz_of(block)) + (row - block.row) * block.columns;
  }
  // Calls body(part) for the parts of a block, each with dz of its own, in the order of their products: the last first,
  // since its dz may lie where dW of the others will.
  template <class Body>
  Status for_each_part(const GradientBlock& block, Body&& body) const {
    if (!has_parts()) return body(block);
    int64_t end = block.column + block.columns;
    for (int i = kParts - 1; i >= 0 && end > block.column; --i) {
      const int64_t begin = std::max(starts_[i], block.column);
      if (begin >= end) continue;
      FUSEDOPS_TRY(body(GradientBlock{block.row, block.rows, begin, end - begin}));
      end = begin;
    }
    return {};
  }
  GradientBlock first_part(const GradientBlock& block) const {
    return has_parts() ? GradientBlock{block.row, block.rows, 0, starts_[1]} : block;
  }
  // The logits of `rows` rows. Their sums have the memory of dz if the types are the same.
  template <class T>
  LogitBlock<T> logits(const GradientBlock& block, int64_t row, int64_t rows) const {
    using A = compute_t<T>;
    A* sums;
    if constexpr (std::is_same_v<T, A>)
      sums = dz<T>(block, row);
    else
      sums = static_cast<A*>(sums_) + first_element(rows, block);
    return linear.block<T>(row, rows, block.column, block.columns, sums);
  }

  // dW of the block's columns, dx of its rows, and dbias of its columns, or the contributions of the block.
  Matmul dweight(const GradientBlock& block) const;
  Matmul dx(const GradientBlock& block) const;
  Status run_dbias(const GradientBlock& block) const;

  // The results in the compute type that are rounded to dx of a chunk, dW and dbias; null if there are none.
  const void* dx_sums() const { return dx_sums_; }
  Matmul dx_of_chunk(int64_t row, int64_t rows) const { return dx_product({row, rows, 0, linear.columns}, dx_at(row)); }
  const void* dweight_sums() const { return dweight_sums_; }  // laid out as dW
  Matmul whole_dweight() const;
  ApartColumns apart_dweight() const;                     // copied after the products; no columns: none
  const void* dbias_sums() const { return dbias_sums_; }  // [chunks, classes]
  Matmul whole_dbias() const;

  size_t workspace() const;
  void* rest() const { return memory_.rest(); }

  LinearLogits linear;
  bool need_dx, need_dweight, need_dbias;

 private:
  // Blocks of columns that are in memory at the same time lie side by side.
  int64_t first_element(int64_t rows, const GradientBlock& block) const {
    return rows * (block.column % linear.block_columns);
  }
  bool has_parts() const { return starts_[1] > 0; }
  void divide();
  void divide_strided();
  int64_t elements_of_chunks() const;
  // dW of the last part is in the workspace.
  bool has_apart_columns() const { return has_parts() && !call_.attributes[at_.transpose_weight]; }
  int64_t apart_columns() const { return linear.columns - starts_[1]; }
  void* dz_of(const GradientBlock& block) const;
  void* dx_at(int64_t row) const { return static_cast<char*>(dx_) + row * linear.depth * size_of(linear.dtype); }
  Matmul dx_product(const GradientBlock& block, void* to) const;
  Matmul::Matrix dz_matrix(const GradientBlock& block) const;
  template <class Body>
  auto with_dbias(const GradientBlock& block, Body&& body) const;

  const Call& call_;
  const GradientPlaces& at_;
  WorkspaceAllocator memory_;
  static constexpr int kParts = 3;
  int64_t starts_[kParts] = {};  // first columns of the parts of dz
  void *sums_ = nullptr, *dz_ = nullptr;
  void *dx_, *dx_sums_ = nullptr;
  void *dweight_low_ = nullptr, *dweight_sums_ = nullptr, *dweight_apart_ = nullptr, *dbias_sums_ = nullptr;
};

// The steps of other operators of the logits, by columns. The first stores the sums of the rows and the logits of the
// labels in memory that begins with LossMemory, the second computes dx, dweight and dbias.
size_t sum_logits_workspace(const LinearLogits& linear);
template <class T>
Status sum_logits_cpu(const LinearLogits& linear, const LossRows<compute_t<T>>& rows,
                      const LossMemory<compute_t<T>>& memory, const Context& context);
template <class T>
Status sum_logits_cuda(const LinearLogits& linear, const LossRows<compute_t<T>>& rows,
                       const LossMemory<compute_t<T>>& memory, const Context& context);
template <class T>
Status differentiate_logits_cpu(const LossProducts& products, const LossGradient<compute_t<T>>& gradient,
                                const Context& context);
template <class T>
Status differentiate_logits_cuda(const LossProducts& products, const LossGradient<compute_t<T>>& gradient,
                                 const Context& context);

}  // namespace fusedops
