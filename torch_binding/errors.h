// Errors of torch's own on their way to the user. torch's C functions return a code where torch throws: the type of the
// exception is lost, and before torch 2.13 its words are, too.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include "core/declaration/status.h"

namespace fusedops::torch_binding {

// A function that only some versions or builds of torch have; null if this one has not, or has not loaded the library.
void* find_in_torch(const char* library, const char* function);

// Throws what is not well: the core's sentence as it stands, or, of one of torch's C functions, torch's words. Before
// torch 2.13 these are that it could not do `what`. No macro of torch's own: their sentences name a file and its line.
void require(const Status& status);
void require(AOTITorchError code, const char* what);

}  // namespace fusedops::torch_binding
