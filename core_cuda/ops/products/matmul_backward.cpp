#include "ops/products/matmul_backward.h"

#include <algorithm>
#include <cstring>

namespace fusedops {
namespace {

using Matrix = Matmul::Matrix;

constexpr int kDc = input_of(kMatmulBackward, "dc"), kA = input_of(kMatmulBackward, "a"),
              kB = input_of(kMatmulBackward, "b");
constexpr auto kTransposeA = attribute_of<bool>(kMatmulBackward, "transpose_a");
constexpr auto kTransposeB = attribute_of<bool>(kMatmulBackward, "transpose_b");
constexpr auto kNeedDa = attribute_of<bool>(kMatmulBackward, "need_da");
constexpr auto kNeedDb = attribute_of<bool>(kMatmulBackward, "need_db");

// Infers dA as a product that has a's shape up to the transposition.
Status backward_rule(Rule& rule) {
  const bool need_db = rule.attributes[kNeedDb];
  Shape da;
  FUSEDOPS_TRY(product_rule(rule, kDc, kB, false, !rule.attributes[kTransposeB], &da));
  if (da.ranked && rule.attributes[kTransposeA]) std::swap(da.dims[da.rank - 2], da.dims[da.rank - 1]);

  const Shape& a = rule.inputs[kA];
  if (need_db && !a.present) return rule.must(kA, "be a tensor if need_db is true", "nothing");
  if (a.present) {
    FUSEDOPS_TRY(rule.same_dtype(kA, kDc));
    if (!da.ranked) da = a;
    if (!rule.same_shape(da, a))
      return rule.must(kA, "have shape " + rule.show(da) + ", as dc and b have it", rule.show(a));
  }
  rule.outputs[output_of(kMatmulBackward, "da")] = rule.attributes[kNeedDa] ? da : Shape::of(da.dtype, {0});
  rule.outputs[output_of(kMatmulBackward, "db")] = rule.gradient(kB, need_db, kB);
  return {};
}

// Both products share the memory after the copies.
size_t backward_workspace(const Call& call) {
  const MatmulBackward backward(call);
  if (!call.context.cuda) return backward.gathered_bytes;
  const auto of = [](const std::optional<Matmul>& product) { return product ? product->workspace() : 0; };
  return backward.gathered_bytes + std::max(of(backward.da), of(backward.db));
}

Status gather_cpu(const Gather& gather, const Context& context) {
  context.parallel_for(gather.outer * gather.inner, 10 + gather.size / 8, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t at = line / gather.inner * gather.outer_stride + line % gather.inner * gather.inner_stride;
      std::memcpy(static_cast<char*>(gather.to) + line * gather.size, static_cast<const char*>(gather.from) + at,
                  gather.size);
    }
  });
  return {};
}

Status backward_cpu(const Call& call) {
  const MatmulBackward backward(call);
  if (backward.da) FUSEDOPS_TRY(multiply_cpu(*backward.da, call.context));
  for (int i = 0; i < backward.gathered; ++i) FUSEDOPS_TRY(gather_cpu(backward.gathers[i], call.context));
  if (backward.db) FUSEDOPS_TRY(multiply_cpu(*backward.db, call.context));
  return {};
}

}  // namespace

MatmulBackward::MatmulBackward(const Call& call) {
  const View &dc_view = *call.inputs[kDc], &b_view = *call.inputs[kB];
  const bool transpose_a = call.attributes[kTransposeA], transpose_b = call.attributes[kTransposeB];
  const DType dtype = dc_view.dtype;
  const int64_t m = dc_view.sizes[dc_view.rank - 2], n = dc_view.sizes[dc_view.rank - 1];
  const int64_t k = b_view.sizes[b_view.rank - (transpose_b ? 1 : 2)];
  int64_t batch = 1;
  for (int i = 0; i < dc_view.rank - 2; ++i) batch *= dc_view.sizes[i];
  Matrix dc = Matrix::of(dc_view, false);

  if (call.attributes[kNeedDa]) {
    const Matrix b = Matrix::of(b_view, transpose_b);
    void* to = call.outputs[output_of(kMatmulBackward, "da")].data;
    if (transpose_a)
      da.emplace(dtype, batch, k, m, n, b, dc.turned(), to);
    else
      da.emplace(dtype, batch, m, k, n, dc, b.turned(), to);
  }
  if (call.attributes[kNeedDb]) {
    Matrix a = Matrix::of(*call.inputs[kA], transpose_a);
    int64_t rows = m;
    if (b_view.rank == 2) {
      a = stacked(call, a, batch, m, k);
      dc = stacked(call, dc, batch, m, n);
      rows = batch * m;
      batch = 1;
    }
    void* to = call.outputs[output_of(kMatmulBackward, "db")].data;
    if (transpose_b)
      db.emplace(dtype, batch, n, k, rows, dc.turned(), a, to);
    else
      db.emplace(dtype, batch, k, n, rows, a.turned(), dc, to);
  }
}

Matrix MatmulBackward::stacked(const Call& call, Matrix matrix, int64_t batch, int64_t rows, int64_t cols) {
  if (batch * rows * cols == 0 || matrix.stack(batch, rows, cols)) return matrix;
  const int64_t size = size_of(call.inputs[kDc]->dtype);
  const int64_t stride = matrix.stride * size, batch_stride = matrix.batch_stride * size;
  void* to = call.workspace ? static_cast<char*>(call.workspace) + gathered_bytes : nullptr;
  gathers[gathered++] = matrix.transposed ? Gather{matrix.data, to, cols, batch, stride, batch_stride, rows * size}
                                          : Gather{matrix.data, to, batch, rows, batch_stride, stride, cols * size};
  constexpr int64_t kAlignment = 128;  // an L2 cache line
  gathered_bytes += (batch * rows * cols * size + kAlignment - 1) / kAlignment * kAlignment;
  return {to, matrix.transposed, matrix.transposed ? batch * rows : cols, 0};
}

Operator matmul_backward() {
  return {kMatmulBackward,
          {.rule = backward_rule, .workspace = backward_workspace, .cpu = backward_cpu, .cuda = matmul_backward_cuda}};
}

}  // namespace fusedops
