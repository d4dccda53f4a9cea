// The C structs in which the Python package passes a program. fusedops/expressions/structs.py mirrors them.
#pragma once

#include <cstdint>

#include "core/program/program.h"

extern "C" {

struct FusedopsInput {
  const char* name;
  int32_t kind;  // as fusedops::Kind
};

struct FusedopsResult {
  const char* name;
  fusedops::program::Result result;
};

struct FusedopsDefinition {
  const char* name;
  const char* source;
  int32_t inputs, results, reductions, stages;
  const FusedopsInput* input;
  const FusedopsResult* result;
  const fusedops::program::Reduction* reduction;
  const int32_t* stage_size;
  const fusedops::program::Instruction* code;
  int32_t needs;
  const char* backward;          // the operator of the derivative, or null
  const char* const* gradients;  // its results, one per input
};

// Adds an operator for the program. Returns null, or an error sentence that lasts until the thread's next call.
FUSEDOPS_EXPORT const char* fusedops_define(const FusedopsDefinition* definition);
}
