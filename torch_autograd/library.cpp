// Registers the autograd kernel of every operator of the core's table with torch.
#include <torch/library.h>

#include <exception>
#include <memory>
#include <mutex>

#include "kernel.h"

namespace fusedops::torch_autograd {
namespace {

class Registration {
 public:
  void register_new() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (; registered_ < operators().size(); ++registered_) {
      const Operator& op = *operators()[registered_];
      if (!c10::Dispatcher::singleton().findSchema({std::string("fusedops::") + op.name, ""}))
        continue;  // refused by torch
      const auto bound = std::make_shared<const BoundOperator>(op);
      for (torch::Library* library : {&cpu_, &cuda_})
        library->impl(op.name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(bound)));
    }
  }

 private:
  std::mutex mutex_;
  size_t registered_ = 0;
  torch::Library cpu_{torch::Library::IMPL, "fusedops", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__};
  torch::Library cuda_{torch::Library::IMPL, "fusedops", c10::DispatchKey::AutogradCUDA, __FILE__, __LINE__};
};

}  // namespace
}  // namespace fusedops::torch_autograd

// Registers the new operators of the table that torch has not refused. Call it after fusedops_torch_register_new().
// Returns null, or an error message that is valid until the thread's next one. Registrations are never removed.
extern "C" FUSEDOPS_EXPORT const char* fusedops_register_autograd() try {
  static auto* const registration = new fusedops::torch_autograd::Registration();
  registration->register_new();
  return nullptr;
} catch (const std::exception& error) {
  thread_local std::string sentence;
  sentence = error.what();
  return sentence.c_str();
}
