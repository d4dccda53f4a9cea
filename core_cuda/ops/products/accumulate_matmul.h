// accumulate_matmul: total = total + op(a) @ op(b), where op transposes the last two dimensions or not. total is
// updated in place. Of 16 bits, the products are summed in float32 and added to a float32 total, without being rounded
// in between: so the gradients of a weight are summed up over the parts of a batch.
#pragma once

#include "core/declaration/operator.h"
#include "ops/products/matmul.h"

namespace fusedops {

inline constexpr Signature kAccumulateMatmul{
    .name = "accumulate_matmul",
    .inputs = {{.name = "total", .updated = true}, matrix("a"), matrix("b")},
    .attributes = {{"transpose_a", Type::boolean, "false"}, {"transpose_b", Type::boolean, "false"}},
    .axes = {{"...mn/k, ...mk^transpose_a, ~...kn^transpose_b ->"}},
};

Operator accumulate_matmul();
FUSEDOPS_CUDA_KERNEL Status accumulate_matmul_cuda(const Call& call);

// The product whose c is the total.
Matmul accumulated_product(const Call& call);

}  // namespace fusedops
