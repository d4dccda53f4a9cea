#include "derivative.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace fusedops::torch_autograd {

using torch::autograd::variable_list;

namespace {

c10::IValue or_none(at::Tensor tensor) { return tensor.defined() ? c10::IValue(std::move(tensor)) : c10::IValue(); }

c10::IValue value_of(const Argument& argument, variable_list& upstream, SavedValues& saved, Mask missing) {
  switch (argument.from) {
    case Argument::From::upstream:
      return or_none(argument.is_last ? std::move(upstream[argument.place]) : upstream[argument.place]);
    case Argument::From::saved:
      if (argument.inputs && !(argument.inputs & missing)) return {};
      return or_none(argument.is_last ? saved.take(argument.place) : saved.tensor(argument.place));
    case Argument::From::rest:
      return saved.rest[argument.place];
    case Argument::From::negated:
      return !saved.rest[argument.place].toBool();
    case Argument::From::wanted:
      return (argument.inputs & missing) != 0;
    case Argument::From::constant:
      return argument.value;
  }
  return {};
}

bool can_run(const BoundStep& step, const variable_list& upstream, SavedValues& saved) {
  if (step.if_given && !saved.tensor(*step.if_given).defined()) return false;
  for (const size_t output : step.required_upstream)
    if (!upstream[output].defined()) return false;
  return true;
}

void refuse(const BoundOperator& bound, Mask wanted) {
  if (const Mask refused = wanted & ~bound.gradient_mask)
    TORCH_CHECK(false, "fusedops.", public_name(bound.op), ": ", bound.op.inputs[std::countr_zero(refused)].name,
                " has no gradient; detach it");
}

}  // namespace

variable_list gradients(const BoundOperator& bound, variable_list upstream, SavedValues& saved, Mask wanted) {
  variable_list result(bound.op.inputs.size());
  if (std::none_of(upstream.begin(), upstream.end(), [](const at::Tensor& dy) { return dy.defined(); })) return result;
  refuse(bound, wanted);
  Mask missing = wanted;
  for (const BoundStep& step : bound.steps) {
    if (!step.computes_any(wanted, missing) || !can_run(step, upstream, saved)) continue;
    torch::jit::Stack stack;
    if (step.op) {
      stack.reserve(step.arguments.size());
      for (const Argument& argument : step.arguments) stack.push_back(value_of(argument, upstream, saved, missing));
      step.op->callBoxed(stack);
    }
    for (const Gradient& gradient : step.gradients)
      if (missing & bit(gradient.input))
        result[gradient.input] = step.op ? stack[gradient.source].toTensor() : upstream[gradient.source];
    missing &= ~step.gradient_mask;
  }
  return result;
}

}  // namespace fusedops::torch_autograd
