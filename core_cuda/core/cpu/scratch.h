// Scratch memory of one task on the CPU. The framework does not allocate it like a workspace, since its size depends on
// the number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace fusedops::cpu {

inline constexpr std::align_val_t kScratchAlignment{64};

struct FreeScratch {
  void operator()(void* memory) const { ::operator delete(memory, kScratchAlignment); }
};

template <class A>
using Scratch = std::unique_ptr<A, FreeScratch>;

// Uninitialized memory for `count` numbers; throws std::bad_alloc, which a binding turns into its framework's error.
template <class A>
Scratch<A> scratch(int64_t count) {
  return Scratch<A>(static_cast<A*>(::operator new(static_cast<size_t>(count) * sizeof(A), kScratchAlignment)));
}

}  // namespace fusedops::cpu
