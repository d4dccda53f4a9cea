// The interpreter's loops: one per operation and per pattern of scalar and vector operands.
#pragma once

#include <array>
#include <cstdint>

#include "core/program/program.h"

namespace fusedops::program::interpreter {

// to[i] = operation(a[i], b[i], c[i]) for n elements; `to` may alias an operand.
template <class A>
using Loop = void (*)(const A* a, const A* b, const A* c, A* to, int64_t n);

// Fused pairs of operations, which programs do not contain: see fuse.h.
constexpr Op further_op(int number) { return static_cast<Op>(static_cast<int32_t>(Op::fnma) + 1 + number); }
inline constexpr Op kMulMul = further_op(0);  // a * b * c
inline constexpr Op kAddMul = further_op(1);  // (a + b) * c
inline constexpr Op kSubMul = further_op(2);  // (a - b) * c
inline constexpr Op kAddAdd = further_op(3);  // a + b + c
inline constexpr int kOperations = static_cast<int>(further_op(4));
inline constexpr Op kProduct = further_op(4);  // a * b as the terms of a sum, computed while they are added

inline constexpr int kPatterns = 8;  // bit i: operand i is a scalar

constexpr int loop_index(Op op, int pattern) { return static_cast<int>(op) * kPatterns + pattern; }

// The loops for this processor, by index. There is none for operations with scalar operands only.
template <class A>
const Loop<A>* loops();

constexpr int operands_of(Op op) {
  if (op <= Op::reduced) return 0;
  if (op == Op::where || (op >= Op::fma && op <= kAddAdd)) return 3;
  const bool two = (op >= Op::add && op <= Op::ne) || op == Op::min || op == Op::max || op == kProduct;
  return two ? 2 : 1;
}

inline std::array<int32_t, 3> operands(const Instruction& instruction) {
  return {instruction.a, instruction.b, instruction.c};
}

// Approximate nanoseconds for 1024 elements.
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
