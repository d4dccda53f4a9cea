// Which probabilities dropout keeps, as bits: nothing but the seed is stored, and the backward draws them again.
//
// Limit: the integer multiplications of Philox, five for each probability, which run at half the rate of others. So
// every word is drawn once: neighbouring keys of a query are one lane's, and their bits go to the lanes that have the
// probabilities.
#pragma once

#include "core/common/dropout.h"

namespace fusedops::cuda {

using DroppedProbabilities = Dropout::Function<float>;

// A bit for each of kCount neighbouring probabilities: whether it is kept. In a loop, which takes fewer registers.
template <int kCount>
__device__ uint32_t kept_bits(const DroppedProbabilities& dropout, int64_t first) {
  constexpr int kAtOnce = 2;  // counters, so that one's multiplications run while the other's are on their way
  static_assert(kCount % (4 * kAtOnce) == 0 && kCount <= 32);
  const auto draw = [&](auto counters, int64_t counter) {
    const Philox<counters> philox(counter, dropout.seed.offset, dropout.seed.key);
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < counters; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k) bits |= uint32_t(philox.words[k][j] >= dropout.least) << (4 * j + k);
    return bits;
  };
  uint64_t bits = 0;
#pragma unroll 1
  for (int i = 0; i < kCount; i += 4 * kAtOnce)
    bits |= uint64_t(draw(std::integral_constant<int, kAtOnce>(), (first + i) / 4)) << i;
  const int before = first % 4;  // words of the first counter that belong to other probabilities
  if (before) bits |= uint64_t(draw(std::integral_constant<int, 1>(), (first + kCount) / 4)) << kCount;
  return uint32_t(bits >> before) & (~0u >> (32 - kCount));
}

}  // namespace fusedops::cuda
