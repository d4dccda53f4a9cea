// global_norm: the Euclidean norm of all elements of a list of tensors, in the compute dtype. Squares are added within
// chunks in the compute dtype, and the chunks' sums in double, in an order that depends on the sizes alone.
#pragma once

#include "core/common/lists.h"
#include "core/common/numeric.h"

namespace fusedops {

inline constexpr Signature kGlobalNorm{
    .name = "global_norm", .inputs = {{"tensors", Kind::list}}, .outputs = {{"norm", "compute(tensors)"}}};

Operator global_norm();
FUSEDOPS_CUDA_KERNEL Status global_norm_cuda(const Call& call);

}  // namespace fusedops
