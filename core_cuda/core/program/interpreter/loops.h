// The loops that the interpreter runs: one for each operation, and for each choice of operands that are one number
// instead of a vector.
#pragma once

#include <cstdint>

#include "core/program/program.h"

namespace fusedops::program::interpreter {

// to[i] = operation(a[i], b[i], c[i]) for n elements; `to` may be one of the operands.
template <class A>
using Loop = void (*)(const A* a, const A* b, const A* c, A* to, int64_t n);

inline constexpr int kOperations = static_cast<int>(Op::sign) + 1;
inline constexpr int kPatterns = 8;  // bit i: operand i is one number

constexpr int loop_index(Op op, int pattern) { return static_cast<int>(op) * kPatterns + pattern; }

// The loops for this processor, by their index. Not all indices have one: no operation has nothing but numbers.
template <class A>
const Loop<A>* loops();

constexpr int operands_of(Op op) {
  if (op <= Op::reduced) return 0;
  if (op == Op::where) return 3;
  const bool two = (op >= Op::add && op <= Op::ne) || op == Op::min || op == Op::max;
  return two ? 2 : 1;
}

// The rough price of 1024 elements, in nanoseconds.
constexpr int64_t cost_of(Op op) {
  switch (op) {
    case Op::pow:
    case Op::sin:
    case Op::cos:
    case Op::erf:
      return 8000;
    case Op::log:
    case Op::log1p:
      return 1000;
    case Op::exp:
    case Op::expm1:
    case Op::tanh:
    case Op::sigmoid:
    case Op::cdf:
    case Op::pdf:
      return 400;
    case Op::div:
    case Op::sqrt:
    case Op::rsqrt:
      return 200;
    default:
      return 80;
  }
}

}  // namespace fusedops::program::interpreter
