// matmul: c = op(a) @ op(b), where op transposes the last two dimensions or not. Its gradients are two more products.
#pragma once

#include "core/operator.h"

namespace fusedops {

// (a, b, *, transpose_a, transpose_b) -> c
const Operator& matmul();
Status matmul_cpu(const Call& call);
FUSEDOPS_CUDA_KERNEL Status matmul_cuda(const Call& call);

// One product per batch: c [batch, m, n] = a [batch, m, k] @ b [batch, k, n]. c is row-major without gaps.
struct Matmul {
  explicit Matmul(const Call& call);

  struct Matrix {
    const void* data;
    bool transposed;       // false: rows of unit stride; true: columns of unit stride
    int64_t stride;        // between rows, or between columns if transposed
    int64_t batch_stride;  // 0: the same matrix for every batch
  };

  DType dtype;
  int64_t batch, m, n, k;
  int64_t slabs;  // that the CUDA kernels cut k into
  Matrix a, b;
  void* c;
};

}  // namespace fusedops
