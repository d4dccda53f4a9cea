// a / b rounded up, for non-negative numbers.
#pragma once

#include <cstdint>

namespace fusedops {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace fusedops
