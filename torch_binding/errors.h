// Errors of torch's C functions. They return a code where torch's C++ throws, so the exception's type is lost, and
// before torch 2.13 also its message.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include "core/declaration/status.h"

namespace fusedops::torch_binding {

// A function that only some versions or builds of torch have. Null if it is missing or its library is not loaded.
void* find_in_torch(const char* library, const char* function);

// Throws if the status or code is an error, with the core's message or torch's message. Before torch 2.13 the latter is
// "torch could not <what>". Not torch's macros, whose messages name a file and a line.
void require(const Status& status);
void require(AOTITorchError code, const char* what);

}  // namespace fusedops::torch_binding
