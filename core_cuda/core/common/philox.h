// Random numbers that are a function of a counter and a key alone, and so need no state: Philox4x32-10, of Salmon,
// Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
//
// Each element of a tensor has a word of its own. It follows from the seed and from the element's position i, counted
// row by row: word i % 4 of the counter whose lower 64 bits are i / 4, and whose upper ones are the seed's offset. So
// it is the same on every device, whichever way the elements are taken, and offsets give streams that never overlap.
#pragma once

#include "core/common/element.h"

namespace fusedops {

// As a tensor of two int64 holds it.
struct Seed {
  uint64_t key, offset;
};

// Counters of 128 bits, which become four words each: word k of counter j is words[k][j]. Several side by side are what
// a compiler vectorizes.
template <int kCount>
struct Philox {
  uint32_t words[4][kCount];

  // The counters low, low + 1 and so on, below the same upper half.
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
      uint64_t product;  // of one instruction
      asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(x), "r"(factor));
      high = uint32_t(product >> 32), low = uint32_t(product);
#else
      high = uint32_t((uint64_t(x) * factor) >> 32), low = x * factor;  // each is vectorized
#endif
    }
  };
};

}  // namespace fusedops
