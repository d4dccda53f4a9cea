// A program: what an expression computes, as the core runs it. The Python package makes it of the expression's text
// (fusedops/expressions/), and its derivative likewise.
//
// The values of a program are those of one element of a row, or of the row as a whole: sums and the like over the last
// dimension. It is computed in stages. Each stage but the last gives the terms of reductions over the row, which the
// later stages read; the last stage gives the results. A stage is a list of instructions, each of which names earlier
// ones of the same stage as its operands.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/declaration/operator.h"

namespace fusedops::program {

enum class Op : int32_t {
  input,     // a: which
  constant,  // value
  reduced,   // a: which reduction
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
  cdf,  // of the normal distribution
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
  int32_t value;  // the place of its terms' instruction in the stage
};

inline constexpr int32_t kLikeAll = -1, kLikeRows = -2;

struct Result {
  int32_t value;  // the place of its instruction in the last stage
  int32_t like;   // the input to whose shape it is summed; kLikeAll: it has the shape to which all inputs broadcast;
                  // kLikeRows: but for the last dimension, which has size 1, since it is the same for all of a row
};

struct Program {
  std::vector<std::vector<Instruction>> stages;
  std::vector<Reduction> reductions;
  std::vector<Result> results;
  bool has_needs = false;  // whether an attribute for each result says if it is wanted
  std::string source;      // the same in C++: `struct Program` of kernel.cuh

  bool is_wanted(const Call& call, size_t result) const {
    return !has_needs || call.attributes[AttributePlace<bool>{static_cast<int>(result)}];
  }
};

namespace interpreter {
struct Plan;
}

// A row of the table that runs a program.
struct ProgramOperator : Operator {
  Program program;
  mutable std::atomic<const interpreter::Plan*> plans = nullptr;  // that the CPU has made of it, as a list
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
size_t cpu_workspace(const Call& call);
size_t cuda_workspace(const Call& call);
Status cpu(const Call& call);
FUSEDOPS_CUDA_KERNEL Status cuda(const Call& call);

// The shape to which the inputs of a call broadcast.
struct Broadcast {
  int rank = 0;
  int64_t sizes[kMaxRank];

  explicit Broadcast(const Call& call);
};

}  // namespace fusedops::program
