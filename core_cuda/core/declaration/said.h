// Texts that functions of C return.
#pragma once

#include <string>

namespace fusedops {

// Holds the text until the thread's next.
inline const char* said(std::string text) {
  thread_local std::string last;
  last = std::move(text);
  return last.c_str();
}

}  // namespace fusedops
