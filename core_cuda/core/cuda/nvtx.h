// NVTX ranges that name operators in the timelines of NVIDIA's tools, such as Nsight Systems.
#pragma once

#include "core/declaration/operator.h"

namespace fusedops {

// Runs the kernel in a range "fusedops.rms_norm [4096, 1024]": operator and first shape. Null in builds without nvcc.
FUSEDOPS_CUDA_KERNEL Status run_in_range(const Operator& op, Kernel kernel, const Call& call);

}  // namespace fusedops
