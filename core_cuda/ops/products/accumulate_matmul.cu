// Limit: the tensor cores. The epilogue reads and writes total once.
#include "ops/products/accumulate_matmul.h"

namespace fusedops {

Status accumulate_matmul_cuda(const Call& call) {
  return multiply_cuda(accumulated_product(call), call.workspace, call.context);
}

}  // namespace fusedops
