// accumulate_matmul: total = total + op(a) @ op(b), where op transposes the last two dimensions or not. total is
// mutated. Products of 16-bit elements are summed in float32 and added to a float32 total without rounding in between.
// So the gradients of a weight accumulate over microbatches.
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

Matmul accumulated_product(const Call& call);

}  // namespace fusedops
