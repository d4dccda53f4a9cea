// Division of 31-bit dividends by a launch constant: a multiplication and a shift. Granlund and Montgomery, "Division
// by invariant integers using multiplication", 1994.
#pragma once

#include <cstdint>

namespace fusedops::cuda {

class Divisor {
 public:
  explicit Divisor(int64_t divisor) : divisor_(divisor) {  // at least 1
    while (shift_ < 31 && int64_t(1) << shift_ < divisor) ++shift_;
    if (divisor <= int64_t(1) << shift_)
      multiplier_ = static_cast<uint32_t>(((((uint64_t(1) << shift_) - divisor) << 32) / divisor) + 1);
    else
      multiplier_ = 0;  // larger than any dividend of 31 bits
  }

  struct Result {
    int64_t quotient, remainder;
  };

  __device__ Result divide(int64_t dividend) const {
    const uint32_t n = static_cast<uint32_t>(dividend);
    const int64_t quotient =
        dividend < int64_t(1) << 31 ? int64_t((__umulhi(n, multiplier_) + n) >> shift_) : dividend / divisor_;
    return {quotient, dividend - quotient * divisor_};
  }

  struct ShortResult {
    uint32_t quotient, remainder;
  };

  // For dividends of 31 bits alone.
  __device__ ShortResult divide_short(uint32_t dividend) const {
    const uint32_t quotient = (__umulhi(dividend, multiplier_) + dividend) >> shift_;
    return {quotient, dividend - quotient * static_cast<uint32_t>(divisor_)};
  }

 private:
  int64_t divisor_;
  uint32_t multiplier_;
  int shift_ = 0;
};

}  // namespace fusedops::cuda
