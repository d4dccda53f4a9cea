// matmul_backward: two more products. With C = A @ B, A = op(a) and B = op(b), dA = dC @ B^T and dB = A^T @ dC, each
// transposed back if op does.
#pragma once

#include <optional>

#include "core/declaration/operator.h"
#include "ops/products/matmul.h"

namespace fusedops {

// (dc, a, b, *, transpose_a, transpose_b, need_da, need_db) -> (da, db); what is not needed is returned empty. a is
// read for db only.
const Operator& matmul_backward();
Status matmul_backward_cpu(const Call& call);
FUSEDOPS_CUDA_KERNEL Status matmul_backward_cuda(const Call& call);

// A copy of lines that are spaced apart in two dimensions, one after the other. All but the counts are bytes.
struct Gather {
  const void* from;
  void* to;
  int64_t outer, inner;  // lines
  int64_t outer_stride, inner_stride;
  int64_t size;  // of a line
};

struct MatmulBackward {
  enum : int { kDc, kA, kB };
  enum : int { kTransposeA, kTransposeB, kNeedDa, kNeedDb };

  explicit MatmulBackward(const Call& call);

  std::optional<Matmul> da, db;  // what is needed, to be computed in this order
  // One b for many matrices: the sum over them is part of the product, which takes one tall matrix from each side. What
  // does not lie that way is copied to the workspace before db is computed.
  Gather gathers[2];
  int gathered = 0;
  size_t gathered_bytes = 0;  // at the start of the workspace; what the products need is behind them

 private:
  Matmul::Matrix stacked(const Call& call, Matmul::Matrix matrix, int64_t batch, int64_t rows, int64_t cols);
};

}  // namespace fusedops
