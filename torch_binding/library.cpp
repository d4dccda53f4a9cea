// Registers every operator of the core's table with torch, twice: torch.ops.fusedops.<op> is the public one, to which
// torch_autograd/, or Python, adds autograd; _<op> is the same kernel bare, for callers that have settled autograd
// themselves.
#include <torch/csrc/stable/library.h>

#include <array>
#include <utility>

#include "call.h"
#include "schema.h"

namespace fusedops::torch_binding {
namespace {

// A boxed kernel carries no data of its own, so that each place in the table needs a function of its own.
constexpr size_t kMostOperators = 128;

template <size_t kPlace>
void kernel_at(StableIValue* stack, uint64_t, uint64_t) {
  call(*operators()[kPlace], stack);
}

constexpr auto kKernels = []<size_t... kPlace>(std::index_sequence<kPlace...>) {
  return std::array{&kernel_at<kPlace>...};
}(std::make_index_sequence<kMostOperators>());

template <class F>
void for_each_name(F&& visit) {
  for (size_t i = 0; i < operators().size(); ++i) {
    const std::string name = operators()[i]->name;
    visit(i, name);
    visit(i, "_" + name);
  }
}

void define(torch::stable::detail::StableLibrary& library) {
  for_each_name([&](size_t i, const std::string& name) { library.def(schema(*operators()[i], name).c_str()); });
}

void implement(torch::stable::detail::StableLibrary& library) {
  for_each_name([&](size_t i, const std::string& name) { library.impl(name.c_str(), kKernels.at(i)); });
}

}  // namespace
}  // namespace fusedops::torch_binding

STABLE_TORCH_LIBRARY(fusedops, library) { fusedops::torch_binding::define(library); }
STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, library) { fusedops::torch_binding::implement(library); }
STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, library) { fusedops::torch_binding::implement(library); }
