// What TensorFlow calls the parts of a declared operator.
#pragma once

#include <string>

#include "core/operator.h"

namespace fusedops::tf_binding {

// axpby_backward -> FusedopsAxpbyBackward
std::string op_name(const Operator& op);

// One type attribute per input, and per output whose dtype no input has: with a single `T`, TensorFlow would refuse a
// wrong dtype in words of its own before the rule is asked.
inline std::string type_attribute(const char* name) { return std::string("T_") + name; }

// An optional input is a list of no or one tensor, of this length.
inline std::string count_attribute(const char* name) { return std::string("N_") + name; }

// Whether the dtype of an output is no input's, but "compute(<input>)".
inline bool is_computed(const Output& output) { return std::string_view(output.dtype).starts_with("compute("); }

// The attribute that holds the dtype of an output.
inline std::string type_attribute(const Output& output) {
  return type_attribute(is_computed(output) ? output.name : output.dtype);
}

}  // namespace fusedops::tf_binding
