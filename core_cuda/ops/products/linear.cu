#include "ops/products/linear.h"

namespace fusedops {

Status linear_cuda(const Call& call) { return multiply_cuda(linear_product(call), call.workspace, call.context); }

}  // namespace fusedops
