#include <dlfcn.h>

#include "core/program/driver.h"

namespace fusedops::program {

Status Driver::check(CUresult error, const char* what) const {
  if (error == CUDA_SUCCESS) return {};
  const char* words = nullptr;
  if (error_string(error, &words) != CUDA_SUCCESS) words = "an unknown error";
  return Status::error("fusedops: ", what, " failed: ", words);
}

const Driver* driver() {
  static const Driver* const found = []() -> const Driver* {
    void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!library) return nullptr;
    auto* driver = new Driver();
    const auto find = [library](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
      return *function != nullptr;
    };
    const bool all = find("cuDriverGetVersion", &driver->version) && find("cuGetErrorString", &driver->error_string) &&
                     find("cuLibraryLoadData", &driver->load) && find("cuLibraryGetKernel", &driver->get_kernel) &&
                     find("cuKernelGetFunction", &driver->get_function) && find("cuLaunchKernelEx", &driver->launch);
    return all ? driver : nullptr;
  }();
  return found;
}

}  // namespace fusedops::program
