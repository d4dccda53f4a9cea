// Declarations shared by the optimizers: the gradient factor and the learning rate, read from device memory so that no
// step synchronizes with the host, and rules.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/common/lists.h"
#include "core/common/numeric.h"

namespace fusedops {

// Inputs of the signatures in adamw.h and sgd.h.
constexpr Input updated_list(const char* name) { return {.name = name, .kind = Kind::list, .updated = true}; }
inline constexpr Input kGrads{"grads", Kind::list}, kLr{"lr", Kind::scalar};
inline constexpr Input kGradScale{"grad_scale", Kind::optional}, kFoundInf{"found_inf", Kind::optional},
    kClip{"clip", Kind::optional};

// The scalars of a call, by the names in the signatures.
struct StepScalars {
  Scalar lr, clip{.number = 1}, grad_scale{.number = 1}, found_inf;
  bool maximize = false;

  // The factor of each gradient.
  template <class T>
  FUSEDOPS_HD compute_t<T> gradient_factor() const {
    const compute_t<T> factor = clip.get<T>() / grad_scale.get<T>();
    return maximize ? -factor : factor;
  }

  template <class T>
  FUSEDOPS_HD bool skipped() const {
    return found_inf.get<T>() != 0;
  }
};

// x, saturated to the largest finite numbers: x - c * finite(x) stays infinite, where x - c * x would be NaN.
template <class C>
FUSEDOPS_HD C finite(C x) {
  constexpr C kLargest = std::numeric_limits<C>::max();
  x = x > kLargest ? kLargest : x;
  return x < -kLargest ? -kLargest : x;
}

// The weighted mean of two numbers, such as a moving average: weight_before · before + weight_now · now, with weights
// that add up to 1.
//
// It starts from the number with the larger weight, as torch.lerp does: v + (1 - beta) · (g² - v) cancels if beta is
// near 0, and g² + beta · (v - g²) if beta is near 1. An infinite start stays infinite.
template <class C>
struct WeightedMean {
  using Bits = std::conditional_t<sizeof(C) == 8, uint64_t, uint32_t>;

  C smaller;       // the smaller weight
  Bits exchanged;  // all ones: `now` is the start. A mask, since compilers do not vectorize a selection by a bool.

  WeightedMean() = default;
  FUSEDOPS_HD WeightedMean(double weight_before, double weight_now)
      : smaller(static_cast<C>(weight_now <= weight_before ? weight_now : weight_before)),
        exchanged(weight_now <= weight_before ? 0 : ~Bits(0)) {}

  FUSEDOPS_HD C operator()(C before, C now) const {
    const Bits both = (std::bit_cast<Bits>(before) ^ std::bit_cast<Bits>(now)) & exchanged;
    const C start = std::bit_cast<C>(std::bit_cast<Bits>(before) ^ both);
    const C end = std::bit_cast<C>(std::bit_cast<Bits>(now) ^ both);
    return multiply_add(smaller, end - finite(start), start);
  }
};

// p · (1 - rate · weight_decay) as a mean of p and 0, which does not cancel if the product is near 1.
template <class C>
FUSEDOPS_HD WeightedMean<C> decay_of(double rate, double weight_decay) {
  return {1 - rate * weight_decay, rate * weight_decay};
}

inline Scalar scalar_or(const Call& call, int input, double otherwise) {
  if (call.inputs[input]) return scalar(call, input);
  return {.number = otherwise};
}

template <const Signature& kOp>
StepScalars step_scalars(const Call& call) {
  return {scalar(call, input_of(kOp, "lr")), scalar_or(call, input_of(kOp, "clip"), 1),
          scalar_or(call, input_of(kOp, "grad_scale"), 1), scalar_or(call, input_of(kOp, "found_inf"), 0),
          call.attributes[attribute_of<bool>(kOp, "maximize")]};
}

// A list of states: shaped like the parameters, of their dtype, or float32 with 16-bit parameters.
inline Status check_state(Rule& rule, int state, int params) {
  FUSEDOPS_TRY(rule.same_shapes(state, params));
  const bool narrow = size_of(rule.inputs[params].dtype) == 2;
  return narrow ? rule.same_dtype_or_f32(state, params) : rule.same_dtype(state, params);
}

// Checks parameters, gradients and scalars.
template <const Signature& kOp>
Status check_step(Rule& rule) {
  constexpr int kParams = input_of(kOp, "params"), kGrads = input_of(kOp, "grads");
  FUSEDOPS_TRY(rule.floating(kParams));
  FUSEDOPS_TRY(rule.same_shapes(kGrads, kParams));
  FUSEDOPS_TRY(rule.same_dtype(kGrads, kParams));
  for (const int scalar :
       {input_of(kOp, "lr"), input_of(kOp, "grad_scale"), input_of(kOp, "found_inf"), input_of(kOp, "clip")})
    FUSEDOPS_TRY(rule.one_element(scalar, kParams));
  return {};
}

}  // namespace fusedops
