#include "errors.h"

#include <dlfcn.h>
#include <torch/headeronly/util/shim_utils.h>

#include <stdexcept>
#include <string>

namespace fusedops::torch_binding {

void* find_in_torch(const char* library, const char* function) {
  void* loaded = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
  return loaded ? dlsym(loaded, function) : nullptr;
}

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.sentence());
}

void require(AOTITorchError code, const char* what) {
  if (code == TORCH_SUCCESS) return;
  using Message = const char* (*)();
  const auto message = reinterpret_cast<Message>(  // since torch 2.13
      find_in_torch("libtorch_cpu.so", "torch_exception_get_what_without_backtrace"));
  throw std::runtime_error(message ? message() : std::string("fusedops: torch could not ") + what);
}

}  // namespace fusedops::torch_binding
