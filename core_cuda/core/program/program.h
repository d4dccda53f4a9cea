// A program: the core's form of an expression. The Python package compiles it from the expression's text
// (fusedops/expressions/), as it does for the derivative.
//
// A value of a program belongs to one element or to a row: reductions are over the last dimension. Programs run in
// stages. Each stage but the last computes the terms of reductions, which later stages read; the last stage computes
// the results. A stage is a list of instructions whose operands are earlier instructions of the same stage.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/declaration/operator.h"

namespace fusedops::program {

enum class Op : int32_t {
  input,     // a: index of the input
  constant,  // value
  reduced,   // a: index of the reduction
  neg,
  add,
  sub,
  mul,
  div,
  pow,
  lt,
  le,
  gt,
  ge,
  eq,
  ne,
  where,
  min,
  max,
  exp,
  log,
  log1p,
  expm1,
  sqrt,
  rsqrt,
  sin,
  cos,
  tanh,
  sigmoid,
  erf,
  cdf,  // standard normal distribution function
  pdf,
  abs,
  floor,
  sign,
  fma,   // a * b + c, rounded once
  fms,   // a * b - c
  fnma,  // c - a * b
};

struct Instruction {
  Op op;
  int32_t a, b, c;
  double value;
};

enum class Fold : int32_t { sum, mean, max, min };

struct Reduction {
  Fold fold;
  int32_t stage;
  int32_t value;  // index of the instruction in its stage that computes the terms
};

inline constexpr int32_t kLikeAll = -1, kLikeRows = -2;

struct Result {
  int32_t value;  // index of its instruction in the last stage
  // the input to whose shape the result is summed; kLikeAll: the broadcast shape of all inputs; kLikeRows: the same,
  // with a last dimension of size 1
  int32_t like;
};

struct Program {
  std::vector<std::vector<Instruction>> stages;
  std::vector<Reduction> reductions;
  std::vector<Result> results;
  bool has_needs = false;  // true if an attribute per result says if it is wanted
  std::string source;      // the program as C++: `struct Program` of kernel.cuh

  bool is_wanted(const Call& call, size_t result) const {
    return !has_needs || call.attributes[AttributeIndex<bool>{static_cast<int>(result)}];
  }
};

namespace interpreter {
struct Plan;
}

// An operator that runs a program.
struct ProgramOperator : Operator {
  Program program;
  mutable std::atomic<const interpreter::Plan*> plans = nullptr;  // a linked list of plans for the CPU
};

// The dtype of the elements: the 16-bit one if an input has 16 bits, else that of the first floating input, else that
// of a number. `dtype_of` gives an input's dtype, and DType::other if it is absent or a number.
template <class DTypeOf>
DType element_dtype(const Operator& op, DTypeOf&& dtype_of) {
  DType found = DType::other;
  for (int i = 0; i < static_cast<int>(op.inputs.size()); ++i) {
    const DType dtype = dtype_of(i);
    if (!is_floating(dtype)) continue;
    if (size_of(dtype) == 2) return dtype;
    if (found == DType::other) found = dtype;
  }
  return found == DType::other ? DType::f32 : found;
}

inline DType element_dtype(const Call& call) {
  return element_dtype(call.op, [&](int i) { return call.inputs[i] ? call.inputs[i]->dtype : DType::other; });
}

inline const ProgramOperator& program_operator(const Operator& op) { return static_cast<const ProgramOperator&>(op); }
inline const Program& program_of(const Operator& op) { return program_operator(op).program; }

Status rule(Rule& rule);
size_t workspace(const Call& call);
size_t cuda_workspace(const Call& call);
Status cpu(const Call& call);
FUSEDOPS_CUDA_KERNEL Status cuda(const Call& call);

// The broadcast shape of a call's inputs.
struct Broadcast {
  int rank = 0;
  int64_t sizes[kMaxRank];

  explicit Broadcast(const Call& call);
};

}  // namespace fusedops::program
