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

  double operator[](AttributePlace<double> at) const { return values_[at.place].f64; }
  int64_t operator[](AttributePlace<int64_t> at) const { return values_[at.place].i64; }
  bool operator[](AttributePlace<bool> at) const { return values_[at.place].i64 != 0; }
  const std::string& operator[](AttributePlace<std::string> at) const { return values_[at.place].string; }
  const std::vector<double>& operator[](AttributePlace<std::vector<double>> at) const { return values_[at.place].f64s; }

  // 0 or false, if the operator has no such attribute.
  template <class V>
  V or_zero(AttributePlace<V> at) const {
    return at.place == kNowhere ? V() : (*this)[at];
  }

  const Value& at(int place) const { return values_[place]; }

 private:
  const Value* values_;
};

}  // namespace fusedops
