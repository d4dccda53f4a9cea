// From a product q k to an exponential of the softmax, on host and device.
#pragma once

#include "core/common/formulas.h"
#include "ops/attention/attention.h"

namespace fusedops {

// The term that ALiBi adds to the score of a key and a query whose diagonal is at another key.
template <class A>
FUSEDOPS_HD A alibi_bias(A slope, int diagonal, int key) {
  return -slope * static_cast<A>(diagonal < key ? key - diagonal : diagonal - key);
}

// The exponent of a probability, or NaN. Beside a large bias, the rounding of a score and of lse can exceed the range
// of exponents, and an infinite probability would make gradients of other rows NaN.
FUSEDOPS_HD float at_most_zero(float exponent) { return exponent > 0 ? 0 : exponent; }

// Adds the logit of a sink to a row's maximum and to its sum of exponentials relative to the maximum. Returns the
// factor that rescales sums relative to the old maximum.
template <class A>
FUSEDOPS_HD A add_sink(A sink, A& max, A& sum) {
  constexpr A kNegInf = -std::numeric_limits<A>::infinity();
  const A larger = sink > max ? sink : max, base = larger == kNegInf ? A(0) : larger;
  const A share = exp2_((max - base) * A(kLog2E));
  sum = sum * share + exp2_((sink - base) * A(kLog2E));
  max = larger;
  return share;
}

// The exponential of a score is 2^(factor * (score - max)). With a positive scale, no soft cap and no added terms,
// scores are the products themselves, and the factor includes the scale.
template <class T>
struct Scores {
  using A = compute_t<T>;

  explicit Scores(const Attention& call)
      : is_product(call.scale > 0 && call.softcap == 0 && !call.has_terms()),
        scale(static_cast<A>(call.scale)),
        cap(static_cast<A>(call.softcap)),
        inverse_cap(cap > 0 ? 1 / cap : A(0)),
        factor(static_cast<A>(is_product ? call.scale * kLog2E : kLog2E)),
        lse_scale(is_product ? scale : A(1)) {}

  FUSEDOPS_HD A of(A product) const {
    const A score = product * scale;
    return cap > 0 ? cap * tanh_(score * inverse_cap) : score;
  }

  // Derivative of a score by scale * q k: 1 without a cap, for an infinite score too.
  FUSEDOPS_HD A slope(A score) const {
    const A share = cap > 0 ? score * inverse_cap : A(0);
    return 1 - share * share;
  }

  // The scaled score, rounded on its own as in lse: if one score dominates, its difference to lse must be exactly zero.
  FUSEDOPS_HD A scaled(A score) const {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(A) == 8)
      return __dmul_rn(score, lse_scale);
    else
      return __fmul_rn(score, lse_scale);
#else
    return score * lse_scale;
#endif
  }

  bool is_product;  // true if a score is the product itself; otherwise it is of() plus the terms
  A scale, cap, inverse_cap, factor;
  A lse_scale;  // factor of a score in lse

 private:
  // The cheapest form for 16-bit elements: its absolute error is below that of the products.
  FUSEDOPS_HD static A tanh_(A x) {
    if constexpr (sizeof(T) == 2)
      return 1 - 2 * activations::reciprocal(1 + exp2_(x * float(2 * kLog2E)));
    else
      return std::tanh(x);
  }
};

}  // namespace fusedops
