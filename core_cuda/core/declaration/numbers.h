// The error sentence of an attribute that is a number.
#pragma once

#include <charconv>
#include <string>

#include "core/declaration/operator.h"

namespace fusedops {

inline std::string spelled(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), number).ptr};
}

// fusedops.<op>: <attribute> must be <expected>; got <got>
inline Status must_be(const Rule& rule, const char* attribute, const char* expected, const std::string& got) {
  return Status::error("fusedops.", rule.op.name, ": ", attribute, " must be ", expected, "; got ", got);
}

}  // namespace fusedops
