// adamw: a step of AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) or of Adam (Kingma and
// Ba, "Adam: A Method for Stochastic Optimization", 2015), as torch.optim documents them:
//
//   g = grad · clip / grad_scale, negated to maximize
//   decoupled: p = p - lr · weight_decay · p, else g = g + weight_decay · p
//   m = beta1 · m + (1 - beta1) · g;  v = beta2 · v + (1 - beta2) · g²;  t = step + 1
//   p = p - lr / (1 - beta1^t) · m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//
// max_exp_avg_sqs: AMSGrad (Reddi et al., "On the Convergence of Adam and Beyond", 2018). They become max(v), which
// replaces v in the last line.
// epsilon_hat: eps is that of Kingma and Ba with a hat, added to sqrt(v) itself, as in Keras.
// masters: float32 masters of 16-bit parameters. They are updated, and params become their rounded copies.
// steps: the number of steps of each parameter, incremented; or `step` for all parameters.
// found_inf: if it is not 0, nothing is written.
//
// Arithmetic is in the compute dtype and rounded once for each result; the powers of beta are computed in double.
// 16-bit parameters may have float32 states.
#pragma once

#include <cmath>

#include "ops/optimizers/optimizer.h"

namespace fusedops {

inline constexpr Input kOptionalStep{"step", Kind::optional};

inline constexpr Signature kAdamw{
    .name = "adamw",
    .inputs = {updated_list("params"), kGrads, updated_list("exp_avgs"), updated_list("exp_avg_sqs"),
               updated_list("max_exp_avg_sqs"), updated_list("steps"), updated_list("masters"), kLr, kOptionalStep,
               kGradScale, kFoundInf, kClip},
    .attributes = {{.name = "beta1", .value = "0.9", .bounds = kBelowOne},
                   {.name = "beta2", .value = "0.999", .bounds = kBelowOne},
                   {.name = "eps", .value = "1e-8", .bounds = kNotNegative},
                   {.name = "weight_decay", .value = "0.01", .bounds = kFinite},
                   {"decoupled", Type::boolean, "true"},
                   {"epsilon_hat", Type::boolean, "false"},
                   {"maximize", Type::boolean, "false"}},
    .axes = {{"..., ..., ..., ..., ..., 1, ..., 1, 1, 1, 1, 1 ->"}}};

// The factors of all elements of a parameter.
template <class C>
struct AdamwFactors {
  WeightedMean<C> decay;
  C size, scale, eps, gradient;
  bool skipped;
};

// 1 - beta^n, which cancels if beta is near 1.
FUSEDOPS_HD double one_minus_power(double beta, double n) {
  return beta > 0.5 ? -expm1(n * log(beta)) : 1 - pow(beta, n);
}

struct AdamwOptions {
  StepScalars scalars;
  double beta1, beta2, eps, weight_decay;
  bool decoupled, epsilon_hat;

  explicit AdamwOptions(const Call& call)
      : scalars(step_scalars<kAdamw>(call)),
        beta1(call.attributes[attribute_of<double>(kAdamw, "beta1")]),
        beta2(call.attributes[attribute_of<double>(kAdamw, "beta2")]),
        eps(call.attributes[attribute_of<double>(kAdamw, "eps")]),
        weight_decay(call.attributes[attribute_of<double>(kAdamw, "weight_decay")]),
        decoupled(call.attributes[attribute_of<bool>(kAdamw, "decoupled")]),
        epsilon_hat(call.attributes[attribute_of<bool>(kAdamw, "epsilon_hat")]) {}

  // The factors of the step after `taken` others. T: the type of the parameters.
  template <class T>
  FUSEDOPS_HD AdamwFactors<compute_t<T>> factors(double taken) const {
    using C = compute_t<T>;
    const double lr = scalars.lr.get<T>();
    const double bias_correction1 = one_minus_power(beta1, taken + 1),
                 sqrt_bias_correction2 = sqrt(one_minus_power(beta2, taken + 1));
    return {.decay = decay_of<C>(lr, decoupled ? weight_decay : 0),
            .size = C(lr / bias_correction1),
            .scale = C(1 / sqrt_bias_correction2),
            .eps = C(epsilon_hat ? eps / sqrt_bias_correction2 : eps),
            .gradient = scalars.gradient_factor<T>(),
            .skipped = scalars.skipped<T>()};
  }
};

// As torch.maximum and tf.maximum: NaN if one of the two is.
template <class C>
FUSEDOPS_HD C maximum(C a, C b) {
  return b > a || b != b ? b : a;
}

// kAmsgrad: an item has a largest v.
template <class C, bool kAmsgrad>
struct AdamwFunction {
  AdamwFactors<C> factors;
  WeightedMean<C> first, second;  // moments
  C added_decay;
  bool skipped;

  // Without AMSGrad, `largest` is v.
  FUSEDOPS_HD C updated(C p, C g, C& m, C& v, C& largest) const {
    g *= factors.gradient;
    if (added_decay != 0) g = multiply_add(added_decay, p, g);  // without decay, 0 * p would be NaN for an infinite p
    p = factors.decay(p, 0);
    m = first(m, g);
    v = second(v, g * g);
    largest = maximum(largest, v);
    return multiply_add(-factors.size, m / multiply_add(std::sqrt(largest), factors.scale, factors.eps), p);
  }

  FUSEDOPS_HD void operator()(C& p, const C& g, C& m, C& v) const { p = updated(p, g, m, v, v); }
  FUSEDOPS_HD void operator()(C& p, const C& g, C& m, C& v, C& max_v_or_master) const {
    if constexpr (kAmsgrad)
      p = updated(p, g, m, v, max_v_or_master);
    else
      p = max_v_or_master = updated(max_v_or_master, g, m, v, v);
  }
  FUSEDOPS_HD void operator()(C& p, const C& g, C& m, C& v, C& largest, C& master) const {
    p = master = updated(master, g, m, v, largest);
  }
};

// P: parameters and gradients; S: states.
template <class P, class S, bool kAmsgrad, bool kMasters>
struct AdamwUpdate {
  using C = compute_t<P>;
  using Parameters = std::conditional_t<kMasters, Written<P>, Updated<P>>;
  using Largest = std::conditional_t<kAmsgrad, std::tuple<Updated<S>>, std::tuple<>>;
  using Masters = std::conditional_t<kMasters, std::tuple<Updated<float>>, std::tuple<>>;
  using Lists =
      decltype(std::tuple_cat(std::tuple<Parameters, Read<P>, Updated<S>, Updated<S>>(), Largest(), Masters()));

  const AdamwFactors<C>* factors;  // one per parameter, or one for all
  bool has_common_step;
  WeightedMean<C> first, second;
  C added_decay;

  AdamwUpdate(const Call& call, const AdamwOptions& options)
      : factors(static_cast<const AdamwFactors<C>*>(call.workspace)),
        has_common_step(call.inputs[input_of(kAdamw, "step")]),
        first(options.beta1, 1 - options.beta1),
        second(options.beta2, 1 - options.beta2),
        added_decay(static_cast<C>(options.decoupled ? 0 : options.weight_decay)) {}

  FUSEDOPS_HD AdamwFunction<C, kAmsgrad> prepared(int64_t place) const {
    const AdamwFactors<C> found = factors[has_common_step ? 0 : place];
    return {found, first, second, added_decay, found.skipped};
  }
};

// Calls run(update, lists) with the update for the lists of the call.
template <class P, class S, class Run>
Status with_adamw_update_of(const Call& call, const AdamwOptions& options, Run&& run) {
  const auto params = call.list(input_of(kAdamw, "params")), grads = call.list(input_of(kAdamw, "grads")),
             m = call.list(input_of(kAdamw, "exp_avgs")), v = call.list(input_of(kAdamw, "exp_avg_sqs")),
             largest = call.list(input_of(kAdamw, "max_exp_avg_sqs")), masters = call.list(input_of(kAdamw, "masters"));
  if constexpr (sizeof(P) == 2 && sizeof(S) == 4) {
    if (!masters.empty() && !largest.empty())
      return run(AdamwUpdate<P, S, true, true>(call, options), {params, grads, m, v, largest, masters});
    if (!masters.empty()) return run(AdamwUpdate<P, S, false, true>(call, options), {params, grads, m, v, masters});
  }
  if (!largest.empty()) return run(AdamwUpdate<P, S, true, false>(call, options), {params, grads, m, v, largest});
  return run(AdamwUpdate<P, S, false, false>(call, options), {params, grads, m, v});
}

template <class Run>
Status with_adamw_update(const Call& call, const AdamwOptions& options, Run&& run) {
  return dispatch(call.list(input_of(kAdamw, "params"))[0].dtype, [&](auto tag) -> Status {
    using P = typename decltype(tag)::type;
    if constexpr (sizeof(P) == 2)
      if (call.list(input_of(kAdamw, "exp_avgs"))[0].dtype == DType::f32)
        return with_adamw_update_of<P, float>(call, options, run);
    return with_adamw_update_of<P, P>(call, options, run);
  });
}

Operator adamw();
FUSEDOPS_CUDA_KERNEL Status adamw_cuda(const Call& call);

}  // namespace fusedops
