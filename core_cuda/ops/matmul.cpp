#include "ops/matmul.h"

#include <algorithm>

namespace fusedops {
namespace {

enum : int { kA, kB };
enum : int { kTransposeA, kTransposeB };

Status at_least_a_matrix(const Rule& rule, int input) {
  const Shape& shape = rule.inputs[input];
  if (!shape.ranked || shape.rank >= 2) return {};
  return rule.must(input, "have at least 2 dimensions", "shape " + rule.show(shape));
}

// The dimension of a matrix that is summed over, and the one that is kept.
struct Sides {
  Dim &summed, &kept;
};

Sides sides(Shape& matrix, bool rows_are_summed) {
  Dim &rows = matrix.dims[matrix.rank - 2], &cols = matrix.dims[matrix.rank - 1];
  return rows_are_summed ? Sides{rows, cols} : Sides{cols, rows};
}

Status same_leading(Rule& rule) {
  Shape &a = rule.inputs[kA], &b = rule.inputs[kB];
  if (b.rank == 2) return {};
  bool equal = a.rank == b.rank;
  for (int i = 0; equal && i < a.rank - 2; ++i) equal = rule.same(a.dims[i], b.dims[i]);
  if (equal) return {};
  Shape leading = a;
  leading.rank -= 2;
  return rule.must(kB, "have two dimensions or a's leading dimensions, " + rule.show(leading), "shape " + rule.show(b));
}

Status matmul_rule(Rule& rule) {
  FUSEDOPS_TRY(rule.floating(kA));
  FUSEDOPS_TRY(rule.same_dtype(kB, kA));
  FUSEDOPS_TRY(at_least_a_matrix(rule, kA));
  FUSEDOPS_TRY(at_least_a_matrix(rule, kB));
  Shape &a = rule.inputs[kA], &b = rule.inputs[kB], &c = rule.outputs[0];
  if (!a.ranked || !b.ranked) {
    c.present = true;
    c.dtype = a.dtype;
    c.ranked = false;
    return {};
  }
  FUSEDOPS_TRY(same_leading(rule));
  const bool transpose_b = rule.attributes[kTransposeB].i64;
  const Sides of_a = sides(a, rule.attributes[kTransposeA].i64), of_b = sides(b, !transpose_b);
  if (!rule.same(of_a.summed, of_b.summed))
    return rule.must(kB,
                     "have " + rule.show(of_a.summed) + (transpose_b ? " columns" : " rows") +
                         " to multiply a of shape " + rule.show(a),
                     "shape " + rule.show(b));
  c = a;
  c.dims[c.rank - 2] = of_a.kept;
  c.dims[c.rank - 1] = of_b.kept;
  return {};
}

// The sizes of a call as declared, before batches become one tall product.
struct Sizes {
  int64_t batch = 1, m, n, k;

  explicit Sizes(const Call& call) {
    const View &a = *call.inputs[kA], &out = call.outputs[0];
    m = out.sizes[out.rank - 2];
    n = out.sizes[out.rank - 1];
    k = a.sizes[a.rank - (call.attributes[kTransposeA].i64 ? 2 : 1)];
    for (int i = 0; i < out.rank - 2; ++i) batch *= out.sizes[i];
  }

  // Into how many slabs the CUDA kernels cut k: several if c has few tiles and k is long, for more blocks at work. A
  // function of the shape alone, as is the order of the sum.
  int64_t slabs() const {
    constexpr int64_t kTile = 64, kBlocks = 256, kLeastSlabs = 4, kLeastDepth = 512;
    if (batch != 1 || m == 0 || n == 0 || m > kTile * kBlocks || n > kTile * kBlocks) return 1;
    const int64_t tiles = ((m + kTile - 1) / kTile) * ((n + kTile - 1) / kTile);
    const int64_t slabs = std::min(kBlocks / tiles, k / kLeastDepth);
    return slabs < kLeastSlabs ? 1 : slabs;
  }
};

// The slabs' products, in the type of their sums. The CPU has no slabs.
size_t matmul_workspace(const Call& call) {
  if (!call.context.cuda) return 0;
  const Sizes sizes(call);
  const int64_t slabs = sizes.slabs();
  return slabs == 1 ? 0 : slabs * sizes.m * sizes.n * size_of(compute_dtype(call.outputs[0].dtype));
}

// Reads a view as op(view). Nothing is read of one without elements, whose strides may be any.
Matmul::Matrix matrix(const View& view, bool transpose) {
  const MatrixStrides strides = as_matrix(view).value_or(MatrixStrides{true, view.sizes[view.rank - 1], 0});
  return {view.data, transpose == strides.row_major, strides.stride, strides.batch_stride};
}

}  // namespace

Matmul::Matmul(const Call& call)
    : dtype(call.outputs[0].dtype),
      a(matrix(*call.inputs[kA], call.attributes[kTransposeA].i64)),
      b(matrix(*call.inputs[kB], call.attributes[kTransposeB].i64)),
      c(call.outputs[0].data) {
  const Sizes sizes(call);
  batch = sizes.batch;
  m = sizes.m;
  n = sizes.n;
  k = sizes.k;
  slabs = sizes.slabs();
  // One b for all of a's matrices, lying one below the other: a single tall product. The stride between rows of
  // matrices of one row is that between the matrices.
  if (b.batch_stride == 0 && !a.transposed) {
    if (m == 1 && a.batch_stride >= k) a.stride = a.batch_stride;
    if (a.batch_stride == m * a.stride) {
      m *= batch;
      batch = 1;
    }
  }
}

const Operator& matmul() {
  static const Operator op{
      .name = "matmul",
      .inputs = {{"a", Kind::tensor, Layout::matrix}, {"b", Kind::tensor, Layout::matrix}},
      .outputs = {{"c", "a"}},
      .attributes = {{"transpose_a", Type::boolean, "false"}, {"transpose_b", Type::boolean, "false"}},
      .rule = matmul_rule,
      .workspace = matmul_workspace,
      .cpu = matmul_cpu,
      .cuda = matmul_cuda,
      .autocast = true,
      .batched = true,
  };
  return op;
}

}  // namespace fusedops
