// Scratch memory of one CPU task. It is no workspace of the framework, since its size depends on the number of threads.
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

// Uninitialized memory for `count` numbers. Throws std::bad_alloc, which bindings turn into the framework's error.
template <class A>
Scratch<A> scratch(int64_t count) {
  return Scratch<A>(static_cast<A*>(::operator new(static_cast<size_t>(count) * sizeof(A), kScratchAlignment)));
}

}  // namespace fusedops::cpu
