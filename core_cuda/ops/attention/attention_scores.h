// From a product q k to its share of the softmax, for the host and the device alike.
#pragma once

#include "core/common/formulas.h"
#include "ops/attention/attention.h"

namespace fusedops {

// A score has a share of 2^(factor * (score - max)). Where the scale is positive and nothing caps the scores, they are
// the products themselves, and the scale is part of the factor.
template <class T>
struct Scores {
  using A = compute_t<T>;

  explicit Scores(const Attention& call)
      : is_product(call.scale > 0 && call.softcap == 0),
        scale(static_cast<A>(call.scale)),
        cap(static_cast<A>(call.softcap)),
        inverse_cap(cap > 0 ? 1 / cap : A(0)),
        factor(static_cast<A>(is_product ? call.scale * kLog2E : kLog2E)),
        natural(is_product ? scale : A(1)) {}

  FUSEDOPS_HD A of(A product) const {
    const A score = product * scale;
    return cap > 0 ? cap * tanh_(score * inverse_cap) : score;
  }

  // The slope of a score in scale * q k: without a cap 1, of an infinite score too.
  FUSEDOPS_HD A slope(A score) const {
    const A share = cap > 0 ? score * inverse_cap : A(0);
    return 1 - share * share;
  }

  // The scaled score, rounded by itself: lse is made of such numbers, and where one score outweighs the others, their
  // difference must be zero, however large they are.
  FUSEDOPS_HD A scaled(A score) const {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(A) == 8)
      return __dmul_rn(score, natural);
    else
      return __fmul_rn(score, natural);
#else
    return score * natural;
#endif
  }

  bool is_product;  // otherwise of() makes a score of a product
  A scale, cap, inverse_cap, factor;
  A natural;  // makes lse's maximum of a score

 private:
  // For 16-bit elements in the form that costs least: its error is absolute, and less than that of the products.
  FUSEDOPS_HD static A tanh_(A x) {
    if constexpr (sizeof(T) == 2)
      return 1 - 2 * activations::reciprocal(1 + exp2_(x * float(2 * kLog2E)));
    else
      return std::tanh(x);
  }
};

}  // namespace fusedops
