// Operators in a library of their own, which a process loads and adds to the table. Such a library is compiled from
// these headers, with the flags of the core, and links rule.cpp and view.cpp: it shares structs with the core, and no
// symbols. It shows one function:
//
//     FUSEDOPS_LIBRARY(&triple(), &triple_backward())
#pragma once

#include <cstdint>
#include <iterator>

#include "core/declaration/operator.h"

namespace fusedops {

// How the shared structs lie in memory: a library that was compiled from other headers has other numbers.
struct Abi {
  int64_t version = 4;  // raised when the meaning of a struct changes, and none of the sizes
  int64_t of_operator = sizeof(Operator), of_step = sizeof(Step), of_call = sizeof(Call), of_rule = sizeof(Rule);
  int64_t of_view = sizeof(View), of_value = sizeof(Value), of_status = sizeof(Status);
  int64_t rank = kMaxRank, inputs = kMaxInputs, outputs = kMaxOutputs, attributes = kMaxAttributes;
  bool operator==(const Abi&) const = default;
};

struct Library {
  Abi abi;
  const Operator* const* rows;
  int64_t count;
};

}  // namespace fusedops

// The operators that the library brings, in place of its one function `fusedops_library`.
#define FUSEDOPS_LIBRARY(...)                                              \
  extern "C" FUSEDOPS_EXPORT const fusedops::Library* fusedops_library() { \
    static const fusedops::Operator* const rows[] = {__VA_ARGS__};         \
    static const fusedops::Library library{{}, rows, std::size(rows)};     \
    return &library;                                                       \
  }
