// What a row that a process adds must be, so that every framework can offer it: nothing fails behind this check.
#pragma once

#include <span>

#include "core/declaration/operator.h"

namespace fusedops {

// The steps of a row may name operators of the table, and rows that are added together with it.
Status check_rows(std::span<const Operator* const> rows);

}  // namespace fusedops
