// What a framework provides for one call: its stream, or its thread pool.
#pragma once

#include <cstdint>
#include <type_traits>

namespace fusedops {

struct Context {
  bool cuda = false;
  void* stream = nullptr;  // cudaStream_t; null is the legacy default stream only if the framework says so

  // Runs body(closure, begin, end) over disjoint ranges that cover [0, count), on the framework's threads. `cost` is
  // the rough price of one item in nanoseconds: cheap loops stay on one thread.
  using Body = void (*)(void* closure, int64_t begin, int64_t end);
  void (*parallel)(void* pool, int64_t count, int64_t cost, Body body, void* closure) = nullptr;
  void* pool = nullptr;

  template <class F>
  void parallel_for(int64_t count, int64_t cost, F&& body) const {
    using Function = std::remove_reference_t<F>;
    parallel(
        pool, count, cost,
        [](void* closure, int64_t begin, int64_t end) { (*static_cast<Function*>(closure))(begin, end); }, &body);
  }
};

}  // namespace fusedops
