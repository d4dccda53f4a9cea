// Compiled kernels on disk, one per file. Several processes may read and write them at once. A file that does not match
// its key, is truncated, or could have been written by another user counts as absent. Failed writes are no errors: the
// next process compiles the kernel again.
//
// Python chooses, creates and checks the folder (fusedops/cache.py) for all caches of compiled code. With an empty
// folder name nothing is stored.
#pragma once

#include <string>

namespace fusedops::program {

// The code stored for this key, which contains everything that the code is compiled from; empty if there is none.
std::string find_kernel(const std::string& folder, const std::string& key);

void keep_kernel(const std::string& folder, const std::string& key, const std::string& code);

}  // namespace fusedops::program
