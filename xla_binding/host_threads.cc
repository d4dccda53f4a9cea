// A parallel loop on XLA's threads. XLA may run the custom call on one of them, so the loop must finish even if no
// other thread is free: the caller runs ranges like any thread, and waits only for ranges that have started.
#include "host_threads.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#include "denormals.h"
#include "xla/ffi/api/ffi.h"

namespace fusedops::xla_binding {
namespace {

constexpr int64_t kNanosecondsPerRange = 20'000;  // ten times the time to wake a thread
constexpr int64_t kRangesPerThread = 4;           // so that the others do not wait for a late thread

// Outlives the loop: a late thread finds no range left.
class Loop {
 public:
  Loop(int64_t count, int64_t ranges, Context::Body body, void* closure)
      : count_(count), ranges_(ranges), body_(body), closure_(closure) {}

  void run_ranges() {
    const IeeeDenormals ieee;
    for (int64_t range; (range = next_.fetch_add(1)) < ranges_;) {
      body_(closure_, begin(range), begin(range + 1));
      if (done_.fetch_add(1) + 1 == ranges_) done_.notify_all();
    }
  }

  void wait() {
    for (int64_t done; (done = done_.load()) < ranges_;) done_.wait(done);
  }

 private:
  int64_t begin(int64_t range) const { return count_ / ranges_ * range + std::min(range, count_ % ranges_); }

  const int64_t count_, ranges_;
  const Context::Body body_;
  void* const closure_;
  std::atomic<int64_t> next_ = 0, done_ = 0;
};

}  // namespace

void parallel_for(void* pool, int64_t count, int64_t cost, Context::Body body, void* closure) {
  auto& threads = *static_cast<xla::ffi::ThreadPool*>(pool);
  const int64_t most = std::min(count, threads.num_threads() * kRangesPerThread);
  // In floating point, since the product may overflow 64 bits.
  const double worth = static_cast<double>(count) * static_cast<double>(cost) / kNanosecondsPerRange;
  const auto ranges = static_cast<int64_t>(std::min(static_cast<double>(most), worth));
  if (ranges <= 1) return body(closure, 0, count);

  const auto loop = std::make_shared<Loop>(count, ranges, body, closure);
  const int64_t helpers = std::min(ranges, threads.num_threads()) - 1;
  try {
    for (int64_t i = 0; i < helpers; ++i) threads.Schedule([loop] { loop->run_ranges(); });
  } catch (const std::bad_alloc&) {
    // Scheduled threads already read the caller's stack: the loop continues with them.
  }
  loop->run_ranges();
  loop->wait();
}

}  // namespace fusedops::xla_binding
