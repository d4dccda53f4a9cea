// Compiled kernels on disk, so that a later process need not compile them: one file for each, which several processes
// may read and write at once. A file that is not what its key says, such as a truncated one, or that another user could
// have written, counts as absent. A kernel that cannot be written is compiled again by the next process: nothing here
// is an error.
//
// The folder is chosen, created and checked in Python (fusedops/cache.py), for all caches of compiled code. Without
// one, an empty string, nothing is kept.
#pragma once

#include <string>

namespace fusedops::program {

// The code that was kept for this key, everything that it was compiled of; empty if there is none.
std::string find_kernel(const std::string& folder, const std::string& key);

void keep_kernel(const std::string& folder, const std::string& key, const std::string& code);

}  // namespace fusedops::program
