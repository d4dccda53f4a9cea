// Dropout of probabilities, as bit masks. Only the seed is stored, and the backward draws again.
//
// Limit: the integer multiplications of Philox, five per probability, which run at half the rate of other instructions.
// So every word is drawn once: one lane draws for adjacent keys of a query and hands the bits to the lanes that hold
// the probabilities.
#pragma once

#include "core/common/dropout.h"

namespace fusedops::cuda {

using DroppedProbabilities = Dropout::Function<float>;

// A call without a seed draws no words: only the scale, which is 1, is read.
__device__ inline DroppedProbabilities prepared(const Dropout& dropout) {
  return dropout.seed ? dropout.prepared<float>() : DroppedProbabilities{{}, 0, 1};
}

// Bits of kCount adjacent probabilities, 1 if kept. Not fully unrolled, to save registers.
template <int kCount>
__device__ uint32_t kept_bits(const DroppedProbabilities& dropout, int64_t first) {
  constexpr int kAtOnce = 2;  // interleaved counters, to hide the latency of multiplications
  static_assert(kCount % (4 * kAtOnce) == 0 && kCount <= 32);
  const auto draw = [&](auto semaphores, int64_t counter) {
    const Philox<semaphores> philox(counter, dropout.seed.offset, dropout.seed.key);
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < semaphores; ++j)
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
