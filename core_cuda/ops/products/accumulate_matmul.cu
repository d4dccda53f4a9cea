// Limit: the tensor cores. total is read and written once, by the kernel that has the sums.
#include "ops/products/accumulate_matmul.h"

namespace fusedops {

Status accumulate_matmul_cuda(const Call& call) {
  return multiply_cuda(accumulated_product(call), call.workspace, call.context);
}

}  // namespace fusedops
