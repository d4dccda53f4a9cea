// matmul: c = op(a) @ op(b), where op transposes the last two dimensions or not.
#pragma once

#include "core/declaration/operator.h"

namespace fusedops {

// Operands of products: a matrix with any stride between its rows or its columns; the same, shared by all rows of the
// other operand; and rows that become a matrix.
constexpr Input matrix(const char* name) { return {.name = name, .layout = Layout::matrix}; }
constexpr Input weight_matrix(const char* name) { return {.name = name, .layout = Layout::matrix, .parameter = true}; }
constexpr Input matrix_of_rows(const char* name) { return {.name = name, .layout = Layout::rows_apart}; }

constexpr Input optional_tensor(const char* name) { return {.name = name, .kind = Kind::optional}; }

inline constexpr Signature kMatmul{
    .name = "matmul",
    .inputs = {matrix("a"), matrix("b")},
    .outputs = {{"c", "a"}},
    .attributes = {{"transpose_a", Type::boolean, "false"}, {"transpose_b", Type::boolean, "false"}},
    .axes = {{"...mk^transpose_a, ~...kn^transpose_b -> ...mn/k"}},
};

Operator matmul();
FUSEDOPS_CUDA_KERNEL Status matmul_cuda(const Call& call);

// Checks that op(a) @ op(b) exists for two inputs, and returns its dtype and shape.
Status product_rule(Rule& rule, int a, int b, bool transpose_a, bool transpose_b, Shape* c);

// What becomes of the sums of a product before they are rounded and written: c = activation(sum + bias).
struct Epilogue {
  const void* bias = nullptr;  // [n], of the product's dtype
  int activation = 0;          // its index in activations::kNames: 0 is the identity
  void* z = nullptr;           // sum + bias, rounded, laid out as c; null: not wanted

  bool is_empty() const { return !bias && !activation && !z; }
};

// One product per batch: c [batch, m, n] = a [batch, m, k] @ b [batch, k, n]. c is row-major.
struct Matmul {
  struct Matrix {
    const void* data;
    bool transposed;       // false: rows of unit stride; true: columns of unit stride
    int64_t stride;        // between rows, or between columns if transposed
    int64_t batch_stride;  // 0: the same matrix for every batch

    static Matrix of(const View& view, bool transpose);  // op(view)

    Matrix turned() const { return {data, !transposed, stride, batch_stride}; }

    // The part that begins at this row and column.
    Matrix from(int64_t row, int64_t column, DType dtype) const;

    // Makes one matrix of `batch` matrices [rows, cols] that lie one below the other; false if they do not.
    bool stack(int64_t batch, int64_t rows, int64_t cols);
  };

  static Matmul of(const Call& call);  // of the operator matmul
  static Matmul of(const View& a, const View& b, bool transpose_a, bool transpose_b, const View& c);
  Matmul(DType dtype, int64_t batch, int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, void* c);

  // c becomes the sums themselves, or is increased by them: in the compute type, without an epilogue.
  Matmul& to_sums(bool add);

  // For a caller without a workspace: neither splits of k nor copies.
  Matmul& without_workspace();

  size_t workspace() const;  // bytes that the CUDA kernels need for the products of the splits
  DType c_dtype() const { return is_wide ? compute_dtype(dtype) : dtype; }

  DType dtype;
  int64_t batch, m, n, k;
  int64_t splits = 0;  // of k, in the CUDA kernels, whose sums another kernel adds; 0: the product is written at once
  Matrix a, b;
  void* c;
  int64_t c_stride;  // between rows; n for a product with an epilogue
  bool is_wide = false, adds = false;
  bool can_copy = true;    // operands, to the workspace: see aligned_copies.h
  bool is_split = false;   // the batch consists of splits of k
  Epilogue epilogue = {};  // of a single product, not of a batch
};

Status multiply_cpu(const Matmul& product, const Context& context);
Status multiply_cuda(const Matmul& product, void* workspace, const Context& context);

}  // namespace fusedops
