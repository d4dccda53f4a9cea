// The framework's resources for one call: its stream or its thread pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <type_traits>

namespace fusedops {

struct Context {
  bool cuda = false;
  void* stream = nullptr;  // cudaStream_t; null is the legacy default stream, if the framework uses it

  // Runs body(closure, begin, end) over disjoint ranges that cover [0, count), on the framework's threads. `count` and
  // `cost` are positive, and body throws nothing.
  using Body = void (*)(void* closure, int64_t begin, int64_t end);
  void (*parallel)(void* pool, int64_t count, int64_t cost, Body body, void* closure) = nullptr;
  void* pool = nullptr;

  // Runs body(begin, end) over disjoint ranges that cover [0, count), on the framework's threads. `cost` is the
  // approximate time of one item in nanoseconds: cheap loops stay on one thread. Framework threads must not see
  // exceptions such as std::bad_alloc: the first one is rethrown here, after the loop.
  template <class F>
  void parallel_for(int64_t count, int64_t cost, F&& body) const {
    if (count <= 0) return;
    struct Loop {
      std::remove_reference_t<F>& body;
      std::atomic_flag has_failed = ATOMIC_FLAG_INIT;
      std::exception_ptr exception = nullptr;
    } loop{body};
    const Body run = [](void* closure, int64_t begin, int64_t end) {
      Loop& loop = *static_cast<Loop*>(closure);
      try {
        loop.body(begin, end);
      } catch (...) {
        if (!loop.has_failed.test_and_set()) loop.exception = std::current_exception();
      }
    };
    parallel(pool, count, std::max<int64_t>(cost, 1), run, &loop);
    if (loop.exception) std::rethrow_exception(loop.exception);
  }
};

}  // namespace fusedops
