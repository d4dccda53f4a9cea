// Counter-based random numbers without state: Philox4x32-10, of Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", 2011.
//
// Each element has a word of its own, a function of the seed and of the element's row-major position i: word i % 4 of
// the counter whose lower 64 bits are i / 4 and whose upper 64 bits are the seed's offset. So it is the same on every
// device and for every order of elements, and offsets give streams that never overlap.
#pragma once

#include "core/common/element.h"

namespace fusedops {

// The first two numbers of the int64 seed tensor.
struct Seed {
  uint64_t key, offset;
};

// The other three numbers of a seed of five: element i of the call is element first + i / run * stride + i % run of the
// whole tensor, of which the call computes a part. All elements are one run if `run` is not positive.
struct Runs {
  uint64_t first = 0;
  int64_t run = 0;
  uint64_t stride = 0;

  FUSEDOPS_HD uint64_t place(int64_t i) const {
    if (run <= 0) return first + i;
    const int64_t number = quotient(i, run);
    return first + number * stride + (i - number * run);
  }

  // The number of elements from i to the end of its run, at most `most`.
  FUSEDOPS_HD int64_t left(int64_t i, int64_t most) const {
    if (run <= 0) return most;
    const int64_t left = run - (i - quotient(i, run) * run);
    return left < most ? left : most;
  }

 private:
  // a / b for 0 <= a < 2^59 and b > 0. On a GPU a division of 64 bits is a call of a function, which would make the
  // compiler wait for each wgmma. Each step divides the rest by at least 2^20.
  static FUSEDOPS_HD int64_t quotient(int64_t a, int64_t b) {
#ifdef __CUDA_ARCH__
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(__ll2float_rn(b)));
    inverse *= 1 - 0x1p-21f;  // so that rounding makes no quotient too large
    uint64_t found = 0, left = a;
#pragma unroll
    for (int step = 0; step < 3; ++step) {
      const uint64_t more = __float2ull_rz(__ull2float_rz(left) * inverse);
      found += more, left -= more * b;
    }
    return found + (left >= uint64_t(b));
#else
    return a / b;
#endif
  }
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
