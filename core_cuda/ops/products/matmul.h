// matmul: c = op(a) @ op(b), where op transposes the last two dimensions or not.
#pragma once

#include <bit>

#include "core/common/element.h"
#include "core/declaration/operator.h"

namespace fusedops {

// Operands of products: a matrix with any row or column stride; the same, shared by all rows of the other operand; and
// rows that are collapsed to a matrix.
constexpr Input matrix(const char* name) { return {.name = name, .layout = Layout::matrix}; }
constexpr Input weight_matrix(const char* name) { return {.name = name, .layout = Layout::matrix, .parameter = true}; }
constexpr Input matrix_of_rows(const char* name) { return {.name = name, .layout = Layout::rows_apart}; }

inline constexpr Attribute kTransposeWeightAttribute{"transpose_weight", Type::boolean, "true"};

constexpr Input optional_tensor(const char* name) { return {.name = name, .kind = Kind::optional}; }

inline constexpr Signature kMatmul{
    .name = "matmul",
    .inputs = {matrix("a"), matrix("b")},
    .outputs = {{"c", "a"}},
    .attributes = {{"transpose_a", Type::boolean, "false"}, {"transpose_b", Type::boolean, "false"}},
    .axes = {{"...mk^transpose_a, ~...kn^transpose_b -> ...mn/k"}},
    .autocast = true,
};

Operator matmul();
FUSEDOPS_CUDA_KERNEL Status matmul_cuda(const Call& call);

// Checks two inputs and infers dtype and shape of op(a) @ op(b).
Status product_rule(Rule& rule, int a, int b, bool transpose_a, bool transpose_b, Shape* c);

// Epilogue of a product, before rounding: c = activation(sum + bias).
struct Epilogue {
  const void* bias = nullptr;  // [n], of the product's dtype
  int activation = 0;          // its index in activations::kNames: 0 is the identity
  void* z = nullptr;           // sum + bias, rounded, laid out as c; null: not stored

  bool is_empty() const { return !bias && !activation && !z; }
};

// A float32 sum as its upper and its lower 16 bits. The upper ones are the sum as bf16, rounded toward zero.
struct Halves {
  uint16_t upper, lower;

  FUSEDOPS_HD static Halves of(float sum) {
    const auto bits = std::bit_cast<uint32_t>(sum);
    return {uint16_t(bits >> 16), uint16_t(bits)};
  }
  FUSEDOPS_HD float sum() const { return std::bit_cast<float>(uint32_t(upper) << 16 | lower); }
};

// One product per batch: c [batch, m, n] = a [batch, m, k] @ b [batch, k, n]. c is row-major.
struct Matmul {
  struct Matrix {
    const void* data;
    bool transposed;       // false: rows have unit stride; true: columns have
    int64_t stride;        // between rows, or between columns if transposed
    int64_t batch_stride;  // 0: the same matrix for every batch

    static Matrix of(const View& view, bool transpose);  // op(view)

    Matrix turned() const { return {data, !transposed, stride, batch_stride}; }

    // The submatrix that begins at this row and column.
    Matrix from(int64_t row, int64_t column, DType dtype) const;

    // Merges `batch` matrices [rows, cols] into one tall matrix; false if they are not adjacent.
    bool stack(int64_t batch, int64_t rows, int64_t cols);
  };

  static Matmul of(const Call& call);
  static Matmul of(const View& a, const View& b, bool transpose_a, bool transpose_b, const View& c);

  // Describes a single row or column in the layout that has more kernels, makes one product of a batch if it can, and
  // may split k.
  Matmul(DType dtype, int64_t batch, int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, void* c);

  // A product with the operands as they are given, for the selection of kernels that read them so.
  static Matmul as_given(DType dtype, int64_t batch, int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, void* c);

  // Makes c the sums in the compute type, without an epilogue. `add`: they are added to c.
  Matmul& to_sums(bool add);

  // Makes c one half of float32 sums, and `low`, laid out as c, the other. A bf16 product over several chunks of k is
  // then summed exactly, with 16 bits per element besides c. The kernel decides which half is where, and does not
  // depend on k. `add`: adds to the sums. `round`: stores the rounded sums in c, and no halves.
  Matmul& to_halves(void* low, bool add, bool round);

  // Rows of c that a kernel without an epilogue for halves computes at a time, in a workspace.
  int64_t rows_of_halves() const;

  // Disables split-K and aligned copies, which need a workspace.
  Matmul& without_workspace();

  size_t workspace() const;  // bytes that the CUDA kernels need
  DType c_dtype() const { return has_compute_dtype_c ? compute_dtype(dtype) : dtype; }

  DType dtype;
  int64_t batch, m, n, k;
  int64_t splits = 0;  // split-K factor of the CUDA kernels; 0: no second kernel adds splits
  Matrix a, b;
  void* c;
  int64_t c_stride;  // row stride; n for a product with an epilogue
  bool has_compute_dtype_c = false, adds = false, rounds = false;
  void* low = nullptr;     // null: c is not in halves
  bool can_copy = true;    // the workspace has room for aligned copies
  bool is_split = false;   // the batch consists of splits of k
  Epilogue epilogue = {};  // empty if there is a batch

 private:
  struct AsGiven {};
  Matmul(AsGiven, DType dtype, int64_t batch, int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, void* c)
      : dtype(dtype), batch(batch), m(m), n(n), k(k), a(a), b(b), c(c), c_stride(n) {}
};

Status multiply_cpu(const Matmul& product, const Context& context);
Status multiply_cuda(const Matmul& product, void* workspace, const Context& context);

}  // namespace fusedops
