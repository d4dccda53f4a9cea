// TensorFlow's names for the parts of a declared operator.
#pragma once

#include <string>

#include "core/declaration/names.h"
#include "core/declaration/operator.h"

namespace fusedops::tf_binding {

// One type attribute per input: with a single `T`, TensorFlow would refuse a wrong dtype in its own words before the
// core checks it.
inline std::string type_attribute(const char* name) { return std::string("T_") + name; }

// The length of the list that TensorFlow sees for an optional input (0 or 1) or for a list.
inline std::string count_attribute(const char* name) { return std::string("N_") + name; }

// True if the node has a T_<output> attribute for an output: its dtype is computed or chosen, or that of an optional
// input, which may be absent.
bool has_own_dtype(const Operator& op, const Output& output);

// True if an input is a list to TensorFlow.
inline bool is_counted(const Input& input) { return input.kind == Kind::optional || input.kind == Kind::list; }

// TensorFlow's name for an argument. `place` counts all inputs, then all outputs.
FUSEDOPS_EXPORT std::string argument_name(const Operator& op, const char* name, size_t place);

// The attribute that holds the dtype of an output.
inline std::string type_attribute(const Operator& op, const Output& output) {
  return type_attribute(has_own_dtype(op, output) ? output.name : output.dtype);
}

}  // namespace fusedops::tf_binding
