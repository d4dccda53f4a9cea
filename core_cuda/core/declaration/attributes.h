#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/declaration/signature.h"

namespace fusedops {

// The declared type selects the member.
struct Value {
  double f64 = 0;
  int64_t i64 = 0;  // booleans too
  std::string string;
  std::vector<double> f64s;
};

// Values in the order of the declaration.
class Attributes {
 public:
  Attributes(const Value* values = nullptr) : values_(values) {}

  double operator[](AttributeIndex<double> at) const { return values_[at.index].f64; }
  int64_t operator[](AttributeIndex<int64_t> at) const { return values_[at.index].i64; }
  bool operator[](AttributeIndex<bool> at) const { return values_[at.index].i64 != 0; }
  const std::string& operator[](AttributeIndex<std::string> at) const { return values_[at.index].string; }
  const std::vector<double>& operator[](AttributeIndex<std::vector<double>> at) const { return values_[at.index].f64s; }

  // 0 or false, if the operator has no such attribute.
  template <class V>
  V or_zero(AttributeIndex<V> at) const {
    return at.index == kAbsent ? V() : (*this)[at];
  }

  const Value& at(int index) const { return values_[index]; }

 private:
  const Value* values_;
};

}  // namespace fusedops
