// grouped_matmul: products of consecutive groups of rows, each with its own matrix. Rows offsets[e] to offsets[e + 1]
// are multiplied by matrix e.
//
// Both structs below also gather and scatter rows, for the operators of experts.h. An array of rows says where row r of
// the groups is in memory. Without one it is at r.
#pragma once

#include "core/declaration/operator.h"
#include "ops/products/matmul.h"

namespace fusedops {

struct WeightDims {
  bool are_known = false;
  Dim groups = 0, in = 0, out = 0;
};

// Checks weights [E, out, in], or [E, in, out] unless transposed, for rows of `in` elements (null: unknown).
Status weights_rule(Rule& rule, int weights, int x, bool transpose, const Dim* in, WeightDims* dims);

// int32, ascending from 0 to at most the number of rows. Rows past the last offset belong to no group.
inline constexpr Input kOffsets{"offsets", Kind::tensor, Layout::contiguous, /*parameter=*/true};

// x [N, in]; weights [E, out, in], or [E, in, out] if transpose_weights is false; offsets [E + 1]; y [N, out].
inline constexpr Signature kGroupedMatmul{
    .name = "grouped_matmul",
    .inputs = {matrix_of_rows("x"), weight_matrix("weights"), kOffsets},
    .outputs = {{"y", "x"}},
    .attributes = {{"transpose_weights", Type::boolean, "true"}},
    .axes = {{"Nk, Ekn^transpose_weights, O -> Nn/k"}},
    .autocast = true,
};

Operator grouped_matmul();
FUSEDOPS_CUDA_KERNEL Status grouped_matmul_cuda(const Call& call);

// The gradient of the weights, which are read for their shape alone. The gradient of x is a grouped_matmul.
inline constexpr Signature kGroupedMatmulBackward{
    .name = "grouped_matmul_backward",
    .inputs = {matrix_of_rows("dy"), matrix_of_rows("x"), weight_matrix("weights"), kOffsets},
    .outputs = {{"dweights", "weights"}},
    .attributes = {{"transpose_weights", Type::boolean, "true"}},
    .axes = {{"Nn, Nk, Ekn^transpose_weights, O -> Ekn^transpose_weights"}},
};

Operator grouped_matmul_backward();
FUSEDOPS_CUDA_KERNEL Status grouped_matmul_backward_cuda(const Call& call);

// Groups of rows. On a CPU the offsets ascend from 0 to at most `count`. On a GPU they may have any values: kernels
// read them as their running maximum, clamped to [0, count].
struct Groups {
  const int32_t* offsets;  // [groups + 1]
  int64_t groups, count;   // count: all rows, those past the last offset included
  void* tiles = nullptr;   // on a GPU: the list of list_tiles_cuda()
};

// Rows of a matrix, of which row r of the groups is number rows[r], or r.
struct GroupRows {
  const void* data;
  int64_t stride;                 // between the rows of the matrix, in elements
  const int32_t* rows = nullptr;  // [count], all of them rows of the matrix
};

// y[e's rows] = x[e's rows] @ b[e] + bias[e], for each group e. Rows of y past the last offset become 0.
struct GroupedMatmul {
  static GroupedMatmul of(const Call& call);

  DType dtype;
  Groups groups;
  int64_t n, k;                     // columns of y and of x
  GroupRows x;                      // each row has k adjacent elements
  Matmul::Matrix b;                 // [k, n] for each group; b.batch_stride lies between the groups
  const void* bias = nullptr;       // [groups, n], of the same dtype
  void* y;                          // [count, n], contiguous
  const int32_t* y_rows = nullptr;  // [count]: a permutation of the rows of y

  // True if a kernel that precedes this product on the stream has waited for the list of tiles, for x.rows and for b
  // before it let its successor start. The product then loads them while that kernel still runs.
  bool is_listed = false;
};

// c[e] = a[e's rows]^T @ b[e's rows] for each group e; 0 for an empty one.
struct GroupedGradient {
  static GroupedGradient of(const Call& call);

  DType dtype;
  Groups groups;
  int64_t m, n;    // columns of a and of b
  GroupRows a, b;  // rows of adjacent elements
  void* c;         // [groups, m, n], contiguous
};

Status multiply_groups_cpu(const GroupedMatmul& product, const Context& context);
Status multiply_groups_cpu(const GroupedGradient& product, const Context& context);

// Lists the tiles of the groups in groups.tiles, which has groups_workspace() bytes.
size_t groups_workspace(const Groups& groups);
FUSEDOPS_CUDA_KERNEL Status list_tiles_cuda(const Groups& groups, const Context& context);

// Without a list of tiles, it is written to the workspace.
FUSEDOPS_CUDA_KERNEL Status multiply_groups_cuda(const GroupedMatmul& product, void* workspace, const Context& context);
FUSEDOPS_CUDA_KERNEL Status multiply_groups_cuda(const GroupedGradient& product, void* workspace,
                                                 const Context& context);

}  // namespace fusedops
