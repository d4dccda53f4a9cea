// Checks of an operator that a process adds. An operator that passes can be registered with every framework.
#pragma once

#include <span>

#include "core/declaration/operator.h"

namespace fusedops {

// Derivatives may refer to operators of the table and to operators added in the same call.
Status check_operators(std::span<const Operator* const> ops);

}  // namespace fusedops
