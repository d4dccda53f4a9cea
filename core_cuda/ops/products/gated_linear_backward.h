// The two parts of gated_linear_backward: dgate and dup, in the workspace, and the products with them.
#pragma once

#include "core/declaration/parts.h"

namespace fusedops {

Parts gated_linear_backward_parts();

}  // namespace fusedops
