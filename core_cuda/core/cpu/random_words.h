// The random words of neighbouring elements (philox.h), on the CPU.
#pragma once

#include <cstdint>

#include "core/common/philox.h"

namespace fusedops::cpu {

// The random words of `count` elements, at most kMost, from `position` on.
template <int64_t kMost>
class RandomWords {
 public:
  RandomWords(Seed seed, int64_t position, int64_t count) : first_(position % 4) {
    const int64_t words = first_ + count;
    for (int64_t at = 0; at < words; at += kStep) {
      const Philox<kCounters> philox((position + at) / 4, seed.offset, seed.key);
      for (int j = 0; j < kCounters; ++j)
        for (int k = 0; k < 4; ++k) words_[at + 4 * j + k] = philox.words[k][j];
    }
  }

  const uint32_t* data() const { return words_ + first_; }

 private:
  static constexpr int kCounters = 8;  // computed at a time, in one vector
  static constexpr int64_t kStep = 4 * kCounters;

  const int64_t first_;  // offset of the first element within its counter
  uint32_t words_[kMost + kStep];
};

}  // namespace fusedops::cpu
