// Operators in a separate library, which a process loads and adds to the table. The library is compiled from these
// headers with the core's flags, and links rule.cpp and view.cpp. It shares structs with the core, but no symbols. It
// exports one function:
//
//   FUSEDOPS_LIBRARY(&triple(), &triple_backward())
#pragma once

#include <cstdint>
#include <iterator>

#include "core/declaration/operator.h"

namespace fusedops {

// The memory layout of the shared structs. A library that was compiled from other headers has other numbers.
struct Abi {
  int64_t version = 4;  // raised when the meaning of a struct changes but no size does
  int64_t of_operator = sizeof(Operator), of_step = sizeof(Step), of_call = sizeof(Call), of_rule = sizeof(Rule);
  int64_t of_view = sizeof(View), of_value = sizeof(Value), of_status = sizeof(Status);
  int64_t rank = kMaxRank, inputs = kMaxInputs, outputs = kMaxOutputs, attributes = kMaxAttributes;
  bool operator==(const Abi&) const = default;
};

struct Library {
  Abi abi;
  const Operator* const* operators;
  int64_t count;
};

}  // namespace fusedops

// Defines the exported function `fusedops_library`, which returns the library's operators.
#define FUSEDOPS_LIBRARY(...)                                                    \
  extern "C" FUSEDOPS_EXPORT const fusedops::Library* fusedops_library() {       \
    static const fusedops::Operator* const operators[] = {__VA_ARGS__};          \
    static const fusedops::Library library{{}, operators, std::size(operators)}; \
    return &library;                                                             \
  }
