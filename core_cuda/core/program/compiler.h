// NVRTC, NVIDIA's compiler as a library, which both frameworks bring along. It is opened at run time, where it is.
#pragma once

#include <cstdint>
#include <string>

#include "core/declaration/operator.h"

extern "C" {

struct FusedopsText {
  const char* name;
  const char* text;
};

// Sets the paths where NVRTC may be, the headers that kernels are made of, and the folder where kernels are kept, empty
// for none: plain C, for the Python package.
FUSEDOPS_EXPORT void fusedops_use_compiler(const char* const* libraries, int32_t library_count,
                                           const FusedopsText* headers, int32_t header_count, const char* cache);
}

namespace fusedops::program {

// The machine code of a source for GPUs of this compute capability, 90 for 9.0: compiled, or found in the cache. CUDA's
// driver, of this version, must be able to load it.
Status compile(const std::string& source, int architecture, int driver, std::string* code);

}  // namespace fusedops::program
