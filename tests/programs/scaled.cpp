// A user's library with one operator that declares no derivative: scaled(x, bias, factor) = factor * x + bias, with x
// as a saved output.
#include "core/cpu/elementwise.h"
#include "core/declaration/library.h"

namespace fusedops {
namespace {

constexpr Signature kScaled{.name = "scaled",
                            .inputs = {{"x"}, {"bias", Kind::optional}},
                            .outputs = {{"y", "x"}, {"copy", "x", /*saved=*/true}},
                            .attributes = {{"factor", Type::f64, "2.0"}},
                            .axes = {{"..., ... -> ..., ..."}}};

Status scaled_rule(Rule& rule) {
  constexpr int kX = input_of(kScaled, "x"), kBias = input_of(kScaled, "bias");
  FUSEDOPS_TRY(rule.floating(kX));
  if (rule.inputs[kBias].present) FUSEDOPS_TRY(rule.same_as(kBias, kX));
  rule.outputs[0] = rule.outputs[1] = rule.inputs[kX];
  return {};
}

Status scaled_cpu(const Call& call) {
  return dispatch(call.inputs[0]->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = compute_t<T>;
    const T* const x = call.input<T>(0);
    const T* const bias = call.input<T>(1);
    const A factor = static_cast<A>(call.attributes[attribute_of<double>(kScaled, "factor")]);
    for (int64_t i = 0; i < call.inputs[0]->numel(); ++i) {
      const A added = bias ? to_compute(bias[i]) : A(0);
      call.output<T>(0)[i] = from_compute<T>(factor * to_compute(x[i]) + added);
      call.output<T>(1)[i] = x[i];
    }
    return Status();
  });
}

const Operator& scaled() {
  static const Operator op{kScaled, {.rule = scaled_rule, .cpu = scaled_cpu}};
  return op;
}

}  // namespace
}  // namespace fusedops

FUSEDOPS_LIBRARY(&fusedops::scaled())
