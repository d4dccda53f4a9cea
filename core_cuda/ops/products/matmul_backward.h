// matmul_backward: two more products. With C = A @ B, A = op(a) and B = op(b), dA = dC @ B^T and dB = A^T @ dC, each
// transposed back if op does.
#pragma once

#include <optional>

#include "core/declaration/operator.h"
#include "ops/products/matmul.h"

namespace fusedops {

// Gradients that are not needed are empty.
inline constexpr Signature kMatmulBackward{
    .name = "matmul_backward",
    .inputs = {matrix("dc"),
               {.name = "a", .kind = Kind::optional, .layout = Layout::matrix, .only_for = "db"},
               matrix("b")},
    .outputs = {{"da", "dc"}, {"db", "b"}},
    .attributes = {{"transpose_a", Type::boolean, "false"},
                   {"transpose_b", Type::boolean, "false"},
                   {"need_da", Type::boolean, "true"},
                   {"need_db", Type::boolean, "true"}},
    .axes = {{"...mn, ...mk^transpose_a, ~...kn^transpose_b -> ...mk^transpose_a/n, ~...kn^transpose_b/m"}},
};

Operator matmul_backward();
FUSEDOPS_CUDA_KERNEL Status matmul_backward_cuda(const Call& call);

// Packs lines that are strided in two dimensions. All fields but the counts are bytes.
struct Gather {
  const void* from;
  void* to;
  int64_t outer, inner;  // counts of lines
  int64_t outer_stride, inner_stride;
  int64_t size;  // bytes of a line
};

struct MatmulBackward {
  explicit MatmulBackward(const Call& call);

  std::optional<Matmul> da, db;  // the needed products, computed in this order
  // If all matrices of a share b, db sums over them: one product of two tall matrices. A matrix that is not stacked is
  // copied to the workspace first.
  Gather gathers[2];
  int gathered = 0;
  size_t gathered_bytes = 0;  // at the start of the workspace; the products use what follows

 private:
  Matmul::Matrix stacked(const Call& call, Matmul::Matrix matrix, int64_t batch, int64_t rows, int64_t cols);
};

}  // namespace fusedops
