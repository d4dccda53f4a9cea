// Registers every operator of the core's table with torch, as torch.ops.fusedops.<op>, without autograd. Built-in
// operators are registered at load, added ones by fusedops_torch_register_new().
#include <torch/csrc/stable/library.h>

#include <array>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "call.h"
#include "negative.h"
#include "schema.h"

namespace fusedops::torch_binding {
namespace {

using torch::stable::detail::StableLibrary;

// A boxed kernel carries no data, so each position in the table needs its own function.
template <auto kCall, size_t kPlace>
void kernel_at(StableIValue* stack, uint64_t, uint64_t) {
  kCall(*operators()[kPlace], stack);
}

template <auto kCall>
constexpr auto kKernels = []<size_t... kPlace>(std::index_sequence<kPlace...>) {
  return std::array{&kernel_at<kCall, kPlace>...};
}(std::make_index_sequence<kMaxOperators>());

class Registration {
 public:
  // Calls `refused(message)` for each operator that torch refuses, and registers all others.
  template <class Refused>
  void register_new(Refused&& refused) {
    const std::lock_guard lock(mutex_);
    for (; registered_ < operators().size(); ++registered_) {
      try {
        register_one(registered_);
      } catch (const std::exception& error) {
        refused(error.what());
      }
    }
  }

 private:
  void register_one(size_t place) {
    const Operator& op = *operators()[place];
    definitions_.def(schema(op).c_str());
    for (StableLibrary* library : {&cpu_, &cuda_}) library->impl(op.name, kKernels<&call>.at(place));
    if (has_negative_kernel(op)) negative_.impl(op.name, kKernels<&call_negative>.at(place));
  }

  std::mutex mutex_;
  size_t registered_ = 0;
  StableLibrary definitions_{StableLibrary::Kind::FRAGMENT, "fusedops", nullptr, __FILE__, __LINE__};
  StableLibrary cpu_{StableLibrary::Kind::IMPL, "fusedops", "CPU", __FILE__, __LINE__};
  StableLibrary cuda_{StableLibrary::Kind::IMPL, "fusedops", "CUDA", __FILE__, __LINE__};
  StableLibrary negative_{StableLibrary::Kind::IMPL, "fusedops", "Negative", __FILE__, __LINE__};
};

// Never destroyed: torch's threads may outlive static objects.
Registration& registration() {
  static auto* const registration = new Registration();
  return *registration;
}

// Null, or the first refusal, which is valid until the thread's next call.
const char* register_new() {
  thread_local std::string refusal;
  refusal.clear();
  registration().register_new([](const char* sentence) {
    if (refusal.empty()) refusal = sentence;
  });
  return refusal.empty() ? nullptr : refusal.c_str();
}

// Built-in operators must be registered: a refusal makes the load fail.
const bool registered_at_load =
    (registration().register_new([](const char* sentence) { throw std::runtime_error(sentence); }), true);

}  // namespace
}  // namespace fusedops::torch_binding

// Registers operators that were added to the table. Returns null, or torch's error message for the first one that it
// refuses, which is valid until the thread's next call.
extern "C" FUSEDOPS_EXPORT const char* fusedops_torch_register_new() { return fusedops::torch_binding::register_new(); }
