// Kernel selection for grouped products. Like that of matmul_dispatch.h it does not depend on values.
#pragma once

#include "core/declaration/dispatch.h"
#include "ops/experts/grouped_matmul.h"

namespace fusedops::cuda {

enum class GroupedKernel { none, sm90, f64, f32, sm80, sm80_unaligned };

// The product as if all rows were in each group.
Matmul representative(const GroupedMatmul& product);
Matmul representative(const GroupedGradient& product);

using GroupedEntry = DispatchEntry<GroupedKernel, Matmul>;
const GroupedEntry& choose_grouped(const Matmul& representative, const GpuProperties& gpu);

// True if one kernel computes the product and the gate of experts.
bool can_fuse_gate(const Matmul& representative, const GpuProperties& gpu);

}  // namespace fusedops::cuda
