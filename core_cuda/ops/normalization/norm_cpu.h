// Both norms on the CPU, forward and backward, for rms_norm.cpp and layer_norm.cpp.
#pragma once

#include "ops/normalization/norm.h"

namespace fusedops {

size_t norm_forward_workspace(const Call& call, const NormForwardPlaces& at);
Status norm_forward_cpu(const Call& call, const NormForwardPlaces& at);

size_t norm_backward_workspace(const Call& call, const NormBackwardPlaces& at);
Status norm_backward_cpu(const Call& call, const NormBackwardPlaces& at);

}  // namespace fusedops
