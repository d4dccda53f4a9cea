// A parallel loop on XLA's threads. XLA may run the custom call itself on one of them, so that the loop must come to
// its end with no other thread free: the caller takes pieces like everybody, and waits only for pieces that were taken.
#include "host_threads.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "tsl/platform/denormal.h"
#include "xla/ffi/api/ffi.h"

namespace fusedops::tf_binding {
namespace {

constexpr int64_t kNanosecondsPerPiece = 20'000;  // ten times what it takes to wake a thread
constexpr int64_t kPiecesPerThread = 4;           // so that a late thread does not keep the others waiting

// Outlives the loop: a thread that comes late finds nothing left to take.
class Loop {
 public:
  Loop(int64_t count, int64_t pieces, Context::Body body, void* closure)
      : count_(count), pieces_(pieces), body_(body), closure_(closure) {}

  void take_pieces() {
    const tsl::port::ScopedDontFlushDenormal ieee;
    for (int64_t piece; (piece = next_.fetch_add(1)) < pieces_;) {
      body_(closure_, begin(piece), begin(piece + 1));
      if (done_.fetch_add(1) + 1 == pieces_) done_.notify_all();
    }
  }

  void wait() {
    for (int64_t done; (done = done_.load()) < pieces_;) done_.wait(done);
  }

 private:
  int64_t begin(int64_t piece) const { return count_ / pieces_ * piece + std::min(piece, count_ % pieces_); }

  const int64_t count_, pieces_;
  const Context::Body body_;
  void* const closure_;
  std::atomic<int64_t> next_ = 0, done_ = 0;
};

}  // namespace

void parallel_for(void* pool, int64_t count, int64_t cost, Context::Body body, void* closure) {
  auto& threads = *static_cast<xla::ffi::ThreadPool*>(pool);
  const int64_t most = std::min(count, threads.num_threads() * kPiecesPerThread);
  // In floating point: the product may be more than 64 bits.
  const double worth = static_cast<double>(count) * static_cast<double>(cost) / kNanosecondsPerPiece;
  const auto pieces = static_cast<int64_t>(std::min(static_cast<double>(most), worth));
  if (pieces <= 1) return body(closure, 0, count);

  const auto loop = std::make_shared<Loop>(count, pieces, body, closure);
  const int64_t helpers = std::min(pieces, threads.num_threads()) - 1;
  for (int64_t i = 0; i < helpers; ++i) threads.Schedule([loop] { loop->take_pieces(); });
  loop->take_pieces();
  loop->wait();
}

}  // namespace fusedops::tf_binding
