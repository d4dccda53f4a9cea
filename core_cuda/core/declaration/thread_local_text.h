// Texts returned by C functions.
#pragma once

#include <string>

namespace fusedops {

// Stores the text until the thread's next call.
inline const char* thread_local_text(std::string text) {
  thread_local std::string last;
  last = std::move(text);
  return last.c_str();
}

}  // namespace fusedops
