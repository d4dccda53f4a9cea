// Checks of offsets on the CPU, whose kernels read them on the host.
#pragma once

#include <cstdint>
#include <string>

#include "core/declaration/status.h"

namespace fusedops::cpu {

inline Status offset_error(const char* op, const char* name, const std::string& expected, const int32_t* offsets,
                           int64_t i) {
  return Status::error("fusedops.", op, ": ", name, " must ", expected, "; got ", std::to_string(offsets[i]),
                       " at position ", std::to_string(i));
}

// Checks `groups` + 1 offsets but for the last one's bound.
inline Status check_ascending(const char* op, const char* name, const int32_t* offsets, int64_t groups) {
  if (offsets[0] != 0) return offset_error(op, name, "begin with 0", offsets, 0);
  for (int64_t i = 1; i <= groups; ++i)
    if (offsets[i] < offsets[i - 1]) return offset_error(op, name, "ascend", offsets, i);
  return {};
}

}  // namespace fusedops::cpu
