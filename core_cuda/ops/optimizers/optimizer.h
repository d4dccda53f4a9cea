// What the optimizers' operators share: the gradient's factor and the learning rate, which are in the device's memory,
// so that no step waits for the host; and rules.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/common/lists.h"
#include "core/common/numeric.h"

namespace fusedops {

// Inputs of the signatures in adamw.h and sgd.h, which describe them.
constexpr Input updated_list(const char* name) { return {.name = name, .kind = Kind::list, .updated = true}; }
inline constexpr Input kGrads{"grads", Kind::list}, kLr{"lr", Kind::scalar};
inline constexpr Input kGradScale{"grad_scale", Kind::optional}, kFoundInf{"found_inf", Kind::optional},
    kClip{"clip", Kind::optional};

// What a call reads once besides lists: inputs of the same names, as the signatures in adamw.h and sgd.h describe them.
struct StepScalars {
  Scalar lr, clip{.number = 1}, grad_scale{.number = 1}, found_inf;
  bool maximize = false;

  // What each gradient is multiplied by.
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

// x, and in place of infinities the largest numbers: x - c * finite(x) stays infinite, where x - c * x would be NaN.
template <class C>
FUSEDOPS_HD C finite(C x) {
  constexpr C kLargest = std::numeric_limits<C>::max();
  x = x > kLargest ? kLargest : x;
  return x < -kLargest ? -kLargest : x;
}

// The weighted mean of two numbers, such as a moving average: weight_before · before + weight_now · now, where the
// weights add up to 1. It starts from the number with the larger weight, as torch.lerp does: v + (1 - beta) · (g² - v)
// cancels if beta is near 0, and g² + beta · (v - g²) if beta is near 1. An infinite start stays infinite.
template <class C>
struct WeightedMean {
  using Bits = std::conditional_t<sizeof(C) == 8, uint64_t, uint32_t>;

  C smaller;       // of the weights
  Bits exchanged;  // all ones: `now` is the start. As a mask, since compilers do not vectorize a choice by a bool.

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

// p · (1 - rate · weight_decay) as a mean of p and 0, which does not cancel where the product is near 1.
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

// A list of states: shaped like the parameters, and of their dtype, or of float32 beside 16 bits.
inline Status check_state(Rule& rule, int state, int params) {
  FUSEDOPS_TRY(rule.same_shapes(state, params));
  const bool narrow = size_of(rule.inputs[params].dtype) == 2;
  return narrow ? rule.same_dtype_or_f32(state, params) : rule.same_dtype(state, params);
}

// Parameters, gradients and the scalars.
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
