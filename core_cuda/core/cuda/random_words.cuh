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

// The random words of kCount elements from `position` of a part of a call on, a multiple of kCount. Runs may end within
// them, and begin anywhere in the whole tensor.
template <int kCount>
class RandomWordsOfPart {
 public:
  __device__ RandomWordsOfPart(Seed seed, const Runs& runs, int64_t position) {
    const uint64_t place = runs.place(position);
    if (place % kCount == 0 && runs.left(position, kCount) == kCount) {
      const RandomWords<kCount, true> words(seed, place);
#pragma unroll
      for (int i = 0; i < kCount; ++i) words_[i] = words[i];
      return;
    }
#pragma unroll 1
    for (int at = 0; at < kCount; ++at) {
      const RandomWords<1, false> word(seed, runs.place(position + at));
#pragma unroll
      for (int i = 0; i < kCount; ++i) words_[i] = i == at ? word[0] : words_[i];
    }
  }

  __device__ uint32_t operator[](int i) const { return words_[i]; }

 private:
  uint32_t words_[kCount];
};

}  // namespace fusedops::cuda
