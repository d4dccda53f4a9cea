#include "ops/products/matmul.h"

#include <algorithm>

#include "ops/products/aligned_copies.h"
#include "ops/products/matmul_backward.h"
#include "ops/products/matmul_gemv.h"

namespace fusedops {
namespace {

Status at_least_a_matrix(const Rule& rule, int input) {
  const Shape& shape = rule.inputs[input];
  if (!shape.ranked || shape.rank >= 2) return {};
  return rule.must(input, "have at least 2 dimensions", "shape " + rule.show(shape));
}

// The contracted dimension of a matrix, and the other one.
struct Sides {
  Dim &contracted, &outer;
};

Sides sides(Shape& matrix, bool rows_are_summed) {
  Dim &rows = matrix.dims[matrix.rank - 2], &cols = matrix.dims[matrix.rank - 1];
  return rows_are_summed ? Sides{rows, cols} : Sides{cols, rows};
}

Status same_leading(Rule& rule, int of_a, int of_b) {
  Shape &a = rule.inputs[of_a], &b = rule.inputs[of_b];
  if (b.rank == 2) return {};
  bool equal = a.rank == b.rank;
  for (int i = 0; equal && i < a.rank - 2; ++i) equal = rule.same(a.dims[i], b.dims[i]);
  if (equal) return {};
  Shape leading = a;
  leading.rank -= 2;
  return rule.must(
      of_b,
      std::string("have two dimensions or ") + rule.input_name(of_a) + "'s leading dimensions, " + rule.show(leading),
      "shape " + rule.show(b));
}

Status matmul_rule(Rule& rule) {
  return product_rule(
      rule, input_of(kMatmul, "a"), input_of(kMatmul, "b"), rule.attributes[attribute_of<bool>(kMatmul, "transpose_a")],
      rule.attributes[attribute_of<bool>(kMatmul, "transpose_b")], &rule.outputs[output_of(kMatmul, "c")]);
}

Status matmul_cpu(const Call& call) { return multiply_cpu(Matmul::of(call), call.context); }

size_t matmul_workspace(const Call& call) { return call.context.cuda ? Matmul::of(call).workspace() : 0; }

int64_t tiles_of(int64_t size, int64_t tile) { return (size + tile - 1) / tile; }

// Split-K factor of the CUDA kernels: above 0 if c has few tiles and k is long. It depends on the shape alone, and so
// does the order of the sum.
int64_t wide_splits(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kTile = 64, kBlocks = 256, kMinSplits = 4, kMinDepth = 512;
  if (m > kTile * kBlocks || n > kTile * kBlocks) return 0;
  const int64_t splits = std::min(kBlocks / (tiles_of(m, kTile) * tiles_of(n, kTile)), k / kMinDepth);
  return splits < kMinSplits ? 0 : splits;
}

// Split-K factor for 16 bits: the minimum of the modeled time of the k loop, which shrinks with more splits, plus that
// of writing and reading their sums, measured on an H200. One split is useful too, since its tiles are smaller. If c
// has few rows or columns, its sums are small compared to the operands.
int64_t splits_of_16_bits(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kTile = 128, kBlocks = 128, kMinDepth = 512, kMinPart = 256;
  constexpr int64_t kMaxNarrow = 2048, kDepthForNarrow = 32;
  const int64_t rows = tiles_of(m, kTile), columns = tiles_of(n, kTile);
  const bool is_narrow =
      std::min(rows, columns) == 1 && std::max(rows, columns) <= kMaxNarrow && std::min(m, n) * kDepthForNarrow <= k;
  const bool has_few_tiles = std::max(rows, columns) <= kBlocks && rows * columns <= kBlocks;
  if (k < kMinDepth || !(is_narrow || has_few_tiles)) return 0;
  const auto time_ns = [&](int64_t splits) {
    constexpr double kNsPerK = 7.5, kBytesPerNs = 4000;
    return kNsPerK * double(k) / double(splits) + double(splits * m * n) * 2 * sizeof(float) / kBytesPerNs;
  };
  const int64_t most = std::min(kBlocks / (rows * columns), k / kMinPart);
  int64_t splits = 1;
  while (splits < most && time_ns(splits + 1) < time_ns(splits)) ++splits;
  return splits;
}

int64_t batch_of(const View& view) {
  int64_t batch = 1;
  for (int i = 0; i < view.rank - 2; ++i) batch *= view.sizes[i];
  return batch;
}

int64_t rows_of(const View& view) { return view.sizes[view.rank - 2]; }
int64_t cols_of(const View& view) { return view.sizes[view.rank - 1]; }

}  // namespace

Status product_rule(Rule& rule, int of_a, int of_b, bool transpose_a, bool transpose_b, Shape* c) {
  FUSEDOPS_TRY(rule.floating(of_a));
  FUSEDOPS_TRY(rule.same_dtype(of_b, of_a));
  FUSEDOPS_TRY(at_least_a_matrix(rule, of_a));
  FUSEDOPS_TRY(at_least_a_matrix(rule, of_b));
  Shape &a = rule.inputs[of_a], &b = rule.inputs[of_b];
  if (!a.ranked || !b.ranked) {
    c->present = true;
    c->dtype = a.dtype;
    c->ranked = false;
    return {};
  }
  FUSEDOPS_TRY(same_leading(rule, of_a, of_b));
  const Sides sides_a = sides(a, transpose_a), sides_b = sides(b, !transpose_b);
  if (!rule.same(sides_a.contracted, sides_b.contracted))
    return rule.must(of_b,
                     "have " + rule.show(sides_a.contracted) + (transpose_b ? " columns" : " rows") + " to multiply " +
                         rule.input_name(of_a) + " of shape " + rule.show(a),
                     "shape " + rule.show(b));
  *c = a;
  c->dims[c->rank - 2] = sides_a.outer;
  c->dims[c->rank - 1] = sides_b.outer;
  return {};
}

// An empty view may have any strides: it is not read.
Matmul::Matrix Matmul::Matrix::of(const View& view, bool transpose) {
  const MatrixStrides strides = as_matrix(view).value_or(MatrixStrides{true, cols_of(view), 0});
  return {view.data, transpose == strides.row_major, strides.stride, strides.batch_stride};
}

Matmul::Matrix Matmul::Matrix::from(int64_t row, int64_t column, DType dtype) const {
  Matrix part = *this;
  const int64_t elements = transposed ? column * stride + row : row * stride + column;
  part.data = static_cast<const char*>(data) + elements * size_of(dtype);
  return part;
}

bool Matmul::Matrix::stack(int64_t batch, int64_t rows, int64_t cols) {
  if (batch == 1) return true;
  if (transposed) {
    if (batch_stride != rows || stride < batch * rows) return false;
    batch_stride = 0;
    return true;
  }
  // If each matrix has one row, the row stride is that between the matrices.
  const int64_t row_stride = rows == 1 ? batch_stride : stride;
  if (batch_stride != rows * row_stride || row_stride < cols) return false;
  stride = row_stride;
  batch_stride = 0;
  return true;
}

Matmul Matmul::of(const Call& call) {
  return of(*call.inputs[input_of(kMatmul, "a")], *call.inputs[input_of(kMatmul, "b")],
            call.attributes[attribute_of<bool>(kMatmul, "transpose_a")],
            call.attributes[attribute_of<bool>(kMatmul, "transpose_b")], call.outputs[output_of(kMatmul, "c")]);
}

Matmul Matmul::of(const View& a, const View& b, bool transpose_a, bool transpose_b, const View& c) {
  return {a.dtype,
          batch_of(c),
          rows_of(c),
          cols_of(c),
          transpose_a ? rows_of(a) : cols_of(a),
          Matrix::of(a, transpose_a),
          Matrix::of(b, transpose_b),
          c.data};
}

Matmul Matmul::as_given(DType dtype, int64_t batch, int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, void* c) {
  return {AsGiven(), dtype, batch, m, n, k, a, b, c};
}

Matmul::Matmul(DType dtype, int64_t batch, int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, void* c)
    : Matmul(AsGiven(), dtype, batch, m, n, k, a, b, c) {
  // A single row or column is also a matrix of the other layout, which has more kernels.
  if (m == 1 && a.transposed && a.stride == 1) this->a.transposed = false, this->a.stride = k;
  if (n == 1 && !b.transposed && b.stride == 1) this->b.transposed = true, this->b.stride = k;
  // A shared b and stacked matrices of a make a single tall product.
  if (b.batch_stride == 0 && this->a.stack(batch, m, k)) {
    this->m = batch * m;
    this->batch = 1;
  }
  if (this->batch != 1 || this->m == 0 || n == 0) return;
  splits = size_of(dtype) == 2 ? splits_of_16_bits(this->m, n, k) : wide_splits(this->m, n, k);
}

Matmul& Matmul::to_sums(bool add) {
  has_compute_dtype_c = true;
  adds = add;
  return *this;
}

Matmul& Matmul::to_halves(void* low, bool add, bool round) {
  this->low = low;
  adds = add, rounds = round;
  return without_workspace();
}

int64_t Matmul::rows_of_halves() const {
  constexpr int64_t kBytes = 16 << 20;
  return std::clamp<int64_t>(kBytes / (std::max<int64_t>(n, 1) * sizeof(float)), 1, std::max<int64_t>(m, 1));
}

Matmul& Matmul::without_workspace() {
  can_copy = false;
  splits = 0;
  return *this;
}

size_t Matmul::workspace() const {
  if (low) return rows_of_halves() * n * sizeof(float);
  if (const Gemv gemv(*this); gemv.rows) return gemv.bytes;
  return AlignedCopies(*this).bytes() + splits * m * n * size_of(compute_dtype(dtype));
}

Operator matmul() {
  return with_backward(kMatmul, kMatmulBackward,
                       {.rule = matmul_rule, .workspace = matmul_workspace, .cpu = matmul_cpu, .cuda = matmul_cuda});
}

}  // namespace fusedops
