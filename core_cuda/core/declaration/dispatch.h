// The choice among an operator's kernels, as a table, and the log of what was chosen.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "core/declaration/operator.h"

namespace fusedops {

// The properties of a GPU that the choice of a kernel depends on: see cuda::current_gpu().
struct GpuProperties {
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int shared_bytes = 0;           // shared memory of a multiprocessor
  bool has_sm90_kernels = false;  // compute capability 9.x, and the build has the kernels for it
};

// An entry of a table that is read from the top. The last entry takes every problem.
template <class Kernel, class Problem>
struct DispatchEntry {
  Kernel kernel;
  const char* name;  // in the log
  bool (*takes)(const Problem&, const GpuProperties&);
  const char* why;  // in the log, too
};

// The first entry that takes the problem.
template <class Entry, size_t kCount, class Problem>
const Entry& first_that_takes(const Entry (&table)[kCount], const Problem& problem, const GpuProperties& gpu) {
  const Entry* entry = table;
  while (entry != table + kCount - 1 && !entry->takes(problem, gpu)) ++entry;
  return *entry;
}

// True if FUSEDOPS_LOG=dispatch asks for a line per call. It is read once, when the library is loaded.
inline const bool kLogsDispatch = [] {
  const char* asked = std::getenv("FUSEDOPS_LOG");
  return asked && std::string_view(asked) == "dispatch";
}();

// Adds a kernel to the line of the operator call that runs on this thread.
void log_kernel(const std::string& name, const char* why, const GpuProperties& gpu);

template <class Kernel, class Problem>
void log_kernel(const DispatchEntry<Kernel, Problem>& entry, const GpuProperties& gpu) {
  if (kLogsDispatch) log_kernel(entry.name, entry.why, gpu);
}

// Runs the call and prints its line to stderr. The lines of calls within it come before, indented.
Status run_logged(const Operator& op, const Call& call, Status (*run)(const Operator&, const Call&));

// "[4096, 1024]"
std::string shape_text(const View& view);

}  // namespace fusedops
