// The name of an operator in graphs: the type of a TensorFlow node, the name of a torch gradient function.
#pragma once

#include <cctype>
#include <string>
#include <string_view>

namespace fusedops {

// axpby_backward -> FusedopsAxpbyBackward
inline std::string type_name(std::string_view op) {
  std::string name = "Fusedops";
  bool upper = true;
  for (const char c : op) {
    if (c != '_') name += upper ? static_cast<char>(std::toupper(c)) : c;
    upper = c == '_';
  }
  return name;
}

}  // namespace fusedops
