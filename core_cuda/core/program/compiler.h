// NVRTC, NVIDIA's compiler library, which the frameworks bring along. It is loaded at run time, if present.
#pragma once

#include <cstdint>
#include <string>

#include "core/declaration/operator.h"

extern "C" {

struct FusedopsText {
  const char* name;
  const char* text;
};

// Sets the candidate paths of NVRTC, the headers of kernels, and the cache folder (empty: none). Called from Python.
FUSEDOPS_EXPORT void fusedops_use_compiler(const char* const* libraries, int32_t library_count,
                                           const FusedopsText* headers, int32_t header_count, const char* cache);
}

namespace fusedops::program {

// The machine code of a source for this compute capability (90 for 9.0): compiled, or found in the cache. `driver` is
// the version of the CUDA driver that must load it.
Status compile(const std::string& source, int architecture, int driver, std::string* code);

}  // namespace fusedops::program
