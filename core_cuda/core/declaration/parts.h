// Operators whose kernel has two parts. Between them a framework can free inputs and only then allocate the outputs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/declaration/operator.h"

namespace fusedops {

struct Parts {
  const char* op;     // the name in the signature
  uint32_t released;  // bit mask of the inputs that only the first part reads

  // Runs the call. `between` comes after the first part, which writes the workspace alone. It may free the released
  // inputs, and sets the memory of the outputs, whose views have no memory before.
  Status (*run)(const Call& call, const std::function<void()>& between);
};

// The parts of an operator; null if it has one part. Calls that are logged or traced have one part.
const Parts* parts_of(const Operator& op);

// The table of such operators: core_cuda/operators.cpp.
std::span<const Parts> built_in_parts();

}  // namespace fusedops
