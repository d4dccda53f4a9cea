// Kernel selection by table, and the log of selected kernels.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "core/declaration/operator.h"

namespace fusedops {

// The GPU properties that kernel selection depends on: see cuda::current_gpu().
struct GpuProperties {
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int shared_bytes = 0;           // shared memory per multiprocessor
  bool has_sm90_kernels = false;  // compute capability 9.x, and the build has kernels for it
};

// An entry of a dispatch table. The first entry that accepts the problem is selected; the last one always does.
template <class Kernel, class Problem>
struct DispatchEntry {
  Kernel kernel;
  const char* name;  // in the log
  bool (*accepts)(const Problem&, const GpuProperties&);
  const char* reason;  // in the log
};

// The first entry that accepts the problem.
template <class Entry, size_t kCount, class Problem>
const Entry& first_that_accepts(const Entry (&table)[kCount], const Problem& problem, const GpuProperties& gpu) {
  const Entry* entry = table;
  while (entry != table + kCount - 1 && !entry->accepts(problem, gpu)) ++entry;
  return *entry;
}

// True if FUSEDOPS_LOG=dispatch asks for a line per call. Read once, when the library is loaded.
inline const bool kLogsDispatch = [] {
  const char* log = std::getenv("FUSEDOPS_LOG");
  return log && std::string_view(log) == "dispatch";
}();

// Adds a kernel to the line of the operator call that runs on this thread.
void log_kernel(const std::string& name, const char* reason, const GpuProperties& gpu);

template <class Kernel, class Problem>
void log_kernel(const DispatchEntry<Kernel, Problem>& entry, const GpuProperties& gpu) {
  if (kLogsDispatch) log_kernel(entry.name, entry.reason, gpu);
}

// Runs the call and prints its line to stderr. Lines of nested calls come first, indented.
Status run_logged(const Operator& op, const Call& call, Status (*run)(const Operator&, const Call&));

std::string shape_text(const View& view);

}  // namespace fusedops
