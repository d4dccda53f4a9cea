// Sorted copies of gathered rows, for products that TMA then reads.
#pragma once

#include "core/declaration/operator.h"
#include "ops/experts/grouped_matmul.h"

namespace fusedops {

// True if products in 16 bits on the current GPU read adjacent rows so much faster that a copy pays.
FUSEDOPS_CUDA_KERNEL bool prefers_copied_rows_cuda();

// to[r] = row number from.rows[r], for all `count` rows of `size` elements.
struct CopiedRows {
  DType dtype;
  GroupRows from;
  int64_t count, size;
  void* to;  // [count, size]
};

FUSEDOPS_CUDA_KERNEL Status run_cuda(const CopiedRows& step, const Context& context);

}  // namespace fusedops
