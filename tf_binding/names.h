// What TensorFlow calls the parts of a declared operator.
#pragma once

#include <string>

#include "core/declaration/names.h"
#include "core/declaration/operator.h"

namespace fusedops::tf_binding {

// One type attribute per input: with a single `T`, TensorFlow would refuse a wrong dtype in words of its own before the
// rule is asked.
inline std::string type_attribute(const char* name) { return std::string("T_") + name; }

// An optional input is a list of no or one tensor, of this length; an input that is a list has one, too.
inline std::string count_attribute(const char* name) { return std::string("N_") + name; }

// Whether the node says the dtype of an output itself, as T_<output>: a computed or chosen one is no input's, that of
// an optional input is unknown where the input is absent.
bool has_own_dtype(const Operator& op, const Output& output);

// Whether an input is a list to TensorFlow.
inline bool is_counted(const Input& input) { return input.kind == Kind::optional || input.kind == Kind::list; }

// What TensorFlow calls an argument. `place`: among all inputs, and behind them all outputs.
FUSEDOPS_EXPORT std::string argument_name(const Operator& op, const char* name, size_t place);

// The attribute that holds the dtype of an output.
inline std::string type_attribute(const Operator& op, const Output& output) {
  return type_attribute(has_own_dtype(op, output) ? output.name : output.dtype);
}

// Whether a kernel failed for what it was given, and then its sentence names the operator, "fusedops.<op>: ..."; any
// other failure is the library's own.
inline bool is_about_an_argument(const Status& status) { return status.sentence().starts_with("fusedops."); }

}  // namespace fusedops::tf_binding
