// Compiled kernels on disk, so that a later process need not compile them: one file for each, which several processes
// may read and write at once. A file that is not what its key says, such as a truncated one, counts as absent, and what
// cannot be written is compiled again by the next process: nothing here is an error.
#pragma once

#include <string>

namespace fusedops::program {

// The folder: $FUSEDOPS_CACHE_DIR, or fusedops in $XDG_CACHE_HOME or ~/.cache. Empty: nothing is kept.
std::string kernel_cache_folder();

// The code that was kept for this key, everything that it was compiled of; empty if there is none.
std::string find_kernel(const std::string& folder, const std::string& key);

void keep_kernel(const std::string& folder, const std::string& key, const std::string& code);

}  // namespace fusedops::program
