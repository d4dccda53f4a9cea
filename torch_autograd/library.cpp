// Registers the kernel of every operator of the core's table with torch.
#include <torch/library.h>

#include <exception>
#include <memory>

#include "kernel.h"

// Null, or why nothing was registered. The registrations last as long as the process.
extern "C" FUSEDOPS_EXPORT const char* fusedops_register_autograd() try {
  using fusedops::torch_autograd::Kernel;
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "fusedops", c10::DispatchKey::Autograd,
                                                  __FILE__, __LINE__);
  for (const fusedops::Operator* op : fusedops::operators())
    library->impl(op->name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(*op)));
  library.release();
  return nullptr;
} catch (const std::exception& error) {
  static std::string sentence;
  sentence = error.what();
  return sentence.c_str();
}
