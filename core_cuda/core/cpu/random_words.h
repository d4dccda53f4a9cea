// The random words of neighbouring elements (philox.h), on the CPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/common/philox.h"

namespace fusedops::cpu {

// The random words of `count` elements, at most kMost, from `position` of a call on.
template <int64_t kMost>
class RandomWords {
 public:
  RandomWords(Seed seed, const Runs& runs, int64_t position, int64_t count) {
    int64_t here = runs.left(position, count);
    first_ = draw(seed, runs.place(position), here, words_);
    for (int64_t at = here; at < count; at += here) {
      here = runs.left(position + at, count - at);
      uint32_t words[kMost + kStep];
      const int64_t first = draw(seed, runs.place(position + at), here, words);
      std::copy_n(words + first, here, words_ + first_ + at);
    }
  }

  const uint32_t* data() const { return words_ + first_; }

 private:
  static constexpr int kCounters = 8;  // computed at a time, in one vector
  static constexpr int64_t kStep = 4 * kCounters;

  // Returns the offset of the first element's word.
  static int64_t draw(Seed seed, uint64_t place, int64_t count, uint32_t* to) {
    const int64_t first = place % 4, words = first + count;
    for (int64_t at = 0; at < words; at += kStep) {
      const Philox<kCounters> philox(place / 4 + at / 4, seed.offset, seed.key);
      for (int j = 0; j < kCounters; ++j)
        for (int k = 0; k < 4; ++k) to[at + 4 * j + k] = philox.words[k][j];
    }
    return first;
  }

  int64_t first_;  // offset of the first element within its counter
  uint32_t words_[kMost + kStep];
};

}  // namespace fusedops::cpu
