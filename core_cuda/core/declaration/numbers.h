// Error sentences for refused attribute values.
#pragma once

#include <charconv>
#include <string>

#include "core/declaration/operator.h"

namespace fusedops {

inline std::string spelled(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), number).ptr};
}

// The bounds of an attribute, in words.
inline std::string bounds_text(const Attribute& attribute) {
  const auto [least, most, is_open] = *attribute.bounds;
  const std::string from = spelled(least), to = spelled(most);
  if (least == kFinitePositive.least) return "a finite number above 0";
  if (most == kLargestFinite) return least == -most ? "a finite number" : "a finite number, at least " + from;
  if (most > kLargestFinite) return "at least " + from;
  if (attribute.type == Type::i64 && most == least + 1) return from + " or " + to;
  return "in [" + from + ", " + to + (is_open ? ")" : "]");
}

// fusedops.<function>: <attribute> must be <expected>; got <got>
inline Status must_be(const Rule& rule, const char* attribute, const std::string& expected, const std::string& got) {
  return Status::error("fusedops.", public_name(rule.op), ": ", attribute, " must be ", expected, "; got ", got);
}

}  // namespace fusedops
