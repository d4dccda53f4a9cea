// sgd: a step of stochastic gradient descent with momentum (Sutskever et al., "On the importance of initialization and
// momentum in deep learning", 2013), as torch.optim documents it:
//
//   g = grad · clip / grad_scale, negated to maximize
//   decoupled: p = p - lr · weight_decay · p, else g = g + weight_decay · p
//   b = momentum · b + (1 - dampening) · g, or g if it is the first step
//   p = p - lr · (nesterov ? g + momentum · b : b)
//
// `velocity`: b has the learning rate within, as in Keras:
//
//   b = momentum · b - lr · g
//   p = p + (nesterov ? momentum · b - lr · g : b)
//
// Without momentums, p = p - lr · g. If found_inf is not 0, nothing is written.
#pragma once

#include "ops/optimizers/optimizer.h"

namespace fusedops {

inline constexpr Signature kSgd{
    .name = "sgd",
    .inputs = {updated_list("params"), kGrads, updated_list("momentums"), kLr, kGradScale, kFoundInf, kClip},
    .attributes = {{.name = "momentum", .value = "0.0", .bounds = kFiniteNotNegative},
                   {.name = "dampening", .value = "0.0", .bounds = kFinite},
                   {.name = "weight_decay", .value = "0.0", .bounds = kFinite},
                   {"decoupled", Type::boolean, "false"},
                   {"nesterov", Type::boolean, "false"},
                   {"maximize", Type::boolean, "false"},
                   {"first", Type::boolean, "false"},
                   {"velocity", Type::boolean, "false"}},
    .axes = {{"..., ..., ..., 1, 1, 1, 1 ->"}}};

template <class C>
struct SgdFunction {
  WeightedMean<C> decay;
  C lr, added_decay, gradient;  // factors
  C momentum, share;            // weight of the new gradient: 1 - dampening
  bool nesterov, first, velocity, skipped;

  // Applies the decay: to p if decoupled, else to the returned gradient.
  FUSEDOPS_HD C decayed(C& p, C g) const {
    g *= gradient;
    if (added_decay != 0) g = multiply_add(added_decay, p, g);  // without decay, 0 * p would be NaN for an infinite p
    p = decay(p, 0);
    return g;
  }

  FUSEDOPS_HD void operator()(C& p, const C& grad) const {
    const C g = decayed(p, grad);
    p = multiply_add(-lr, g, p);
  }

  FUSEDOPS_HD void operator()(C& p, const C& grad, C& b) const {
    const C g = decayed(p, grad);
    const C added = velocity ? -lr * g : first ? g : share * g;
    b = velocity || !first ? multiply_add(momentum, b, added) : added;
    const C direction = nesterov ? multiply_add(momentum, b, velocity ? added : g) : b;
    p = velocity ? p + direction : multiply_add(-lr, direction, p);
  }
};

// P: parameters and gradients; S: momentums.
template <class P, class S, bool kMomentum>
struct SgdUpdate {
  using C = compute_t<P>;
  using Lists =
      std::conditional_t<kMomentum, std::tuple<Updated<P>, Read<P>, Updated<S>>, std::tuple<Updated<P>, Read<P>>>;

  StepScalars scalars;
  double weight_decay;
  C momentum, share;
  bool decoupled, nesterov, first, velocity;

  explicit SgdUpdate(const Call& call)
      : scalars(step_scalars<kSgd>(call)),
        weight_decay(call.attributes[attribute_of<double>(kSgd, "weight_decay")]),
        momentum(static_cast<C>(call.attributes[attribute_of<double>(kSgd, "momentum")])),
        share(static_cast<C>(1 - call.attributes[attribute_of<double>(kSgd, "dampening")])),
        decoupled(call.attributes[attribute_of<bool>(kSgd, "decoupled")]),
        nesterov(call.attributes[attribute_of<bool>(kSgd, "nesterov")]),
        first(call.attributes[attribute_of<bool>(kSgd, "first")]),
        velocity(call.attributes[attribute_of<bool>(kSgd, "velocity")]) {}

  FUSEDOPS_HD SgdFunction<C> prepared(int64_t) const {
    const C lr = scalars.lr.get<P>();
    return {decay_of<C>(lr, decoupled ? weight_decay : 0),
            lr,
            static_cast<C>(decoupled ? 0 : weight_decay),
            scalars.gradient_factor<P>(),
            momentum,
            share,
            nesterov,
            first,
            velocity,
            scalars.skipped<P>()};
  }
};

// Calls run(update, lists) with the update for the dtypes of the call.
template <class Run>
Status with_sgd_update(const Call& call, Run&& run) {
  const auto params = call.list(input_of(kSgd, "params")), grads = call.list(input_of(kSgd, "grads")),
             momentums = call.list(input_of(kSgd, "momentums"));
  return dispatch(params[0].dtype, [&](auto tag) -> Status {
    using P = typename decltype(tag)::type;
    if (momentums.empty()) return run(SgdUpdate<P, P, false>(call), {params, grads});
    if constexpr (sizeof(P) == 2)
      if (momentums[0].dtype == DType::f32) return run(SgdUpdate<P, float, true>(call), {params, grads, momentums});
    return run(SgdUpdate<P, P, true>(call), {params, grads, momentums});
  });
}

Operator sgd();
FUSEDOPS_CUDA_KERNEL Status sgd_cuda(const Call& call);

}  // namespace fusedops
