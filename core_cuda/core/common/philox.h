// Counter-based random numbers without state: Philox4x32-10, of Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", 2011.
//
// Each element has a word of its own, a function of the seed and of the element's row-major position i: word i % 4 of
// the counter whose lower 64 bits are i / 4 and whose upper 64 bits are the seed's offset. So it is the same on every
// device and for every order of elements, and offsets give streams that never overlap.
#pragma once

#include "core/common/element.h"

namespace fusedops {

// The layout of the int64 seed tensor.
struct Seed {
  uint64_t key, offset;
};

// Four words for each of kCount 128-bit counters: word k of counter j is words[k][j], so that compilers vectorize.
template <int kCount>
struct Philox {
  uint32_t words[4][kCount];

  // Counters low, low + 1 and so on, with the same upper half.
  FUSEDOPS_HD Philox(uint64_t low, uint64_t high, uint64_t key) {
    for (int j = 0; j < kCount; ++j) {
      words[0][j] = uint32_t(low + j), words[1][j] = uint32_t((low + j) >> 32);
      words[2][j] = uint32_t(high), words[3][j] = uint32_t(high >> 32);
    }
    uint32_t key_low = uint32_t(key), key_high = uint32_t(key >> 32);
    for (int round = 0; round < 10; ++round, key_low += 0x9E3779B9, key_high += 0xBB67AE85)
      for (int j = 0; j < kCount; ++j) {
        const Product a(words[0][j], 0xD2511F53), b(words[2][j], 0xCD9E8D57);
        words[0][j] = b.high ^ words[1][j] ^ key_low;
        words[1][j] = b.low;
        words[2][j] = a.high ^ words[3][j] ^ key_high;
        words[3][j] = a.low;
      }
  }

 private:
  struct Product {
    uint32_t high, low;

    FUSEDOPS_HD Product(uint32_t x, uint32_t factor) {
#ifdef __CUDA_ARCH__
      uint64_t product;  // one instruction
      asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(x), "r"(factor));
      high = uint32_t(product >> 32), low = uint32_t(product);
#else
      high = uint32_t((uint64_t(x) * factor) >> 32), low = x * factor;  // vectorized separately
#endif
    }
  };
};

}  // namespace fusedops
