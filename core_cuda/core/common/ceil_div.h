// a / b, rounded up, of numbers that are not negative.
#pragma once

#include <cstdint>

namespace fusedops {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace fusedops
