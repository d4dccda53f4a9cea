// The random words of neighbouring elements (philox.h), in the registers of a thread.
#pragma once

#include "core/common/philox.h"

namespace fusedops::cuda {

// The random words of kCount elements from `position` on, a multiple of kCount if kAligned.
template <int kCount, bool kAligned>
class RandomWords {
 public:
  __device__ RandomWords(Seed seed, int64_t position) {
    const Philox<kCounters> philox(position / 4, seed.offset, seed.key);
#pragma unroll
    for (int i = 0; i < 4 * kCounters; ++i) words_[i] = philox.words[i % 4][i / 4];
    // Shifts by 1 and 2 move the words to the front. A dynamic index would put them into local memory.
#pragma unroll
    for (int shift = 1; shift <= kMaxShift; shift *= 2)
#pragma unroll
      for (int i = 0; i + shift < 4 * kCounters; ++i) words_[i] = position & shift ? words_[i + shift] : words_[i];
  }

  __device__ uint32_t operator[](int i) const { return words_[i]; }

 private:
  // maximum offset of the first element within its counter
  static constexpr int kMaxShift = kAligned ? kCount % 4 : 3;
  static constexpr int kCounters = (kMaxShift + kCount + 3) / 4;

  uint32_t words_[4 * kCounters];
};

}  // namespace fusedops::cuda
