// Rows on the CPU, divided into blocks that stay in the L1 cache: the work items of threads.
#pragma once

#include <algorithm>

#include "core/cpu/elementwise.h"
#include "core/cpu/widest.h"

namespace fusedops::cpu {

// Calls body(row, column, n) for blocks of n <= kBlock elements that cover all rows. `cost` is the approximate time of
// kBlock elements in nanoseconds.
template <class Body>
void for_row_blocks(const Context& context, int64_t rows, int64_t size, int64_t cost, Body&& body) {
  const int64_t per_row = (size + kBlock - 1) / kBlock;
  const int64_t cost_ns = std::max<int64_t>(1, cost * std::min(size, kBlock) / kBlock);
  context.parallel_for(rows * per_row, cost_ns, [&](int64_t begin, int64_t end) {
    run_widest([&] {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / per_row, column = i % per_row * kBlock;
        body(row, column, std::min(kBlock, size - column));
      }
    });
  });
}

// A block of results: computed at data(), then stored by keep(). data() is the destination itself where possible.
template <class T>
class Results {
 public:
  Results(T* to, bool streamed) : to_(to), streamed_(streamed) {}

  compute_t<T>* data() {
    if constexpr (std::is_same_v<T, compute_t<T>>)
      if (to_ && !streamed_) return to_;
    return buffer_;
  }

  void keep(int64_t n) {
    if (!to_) return;
    if constexpr (std::is_same_v<T, compute_t<T>>) {
      if (streamed_) stream(buffer_, to_, n);
    } else if (streamed_) {
      T narrowed[kBlock];
      narrow(buffer_, narrowed, n);
      stream(narrowed, to_, n);
    } else {
      narrow(buffer_, to_, n);
    }
  }

 private:
  T* to_;  // null: nothing is stored
  bool streamed_;
  compute_t<T> buffer_[kBlock];
};

}  // namespace fusedops::cpu
