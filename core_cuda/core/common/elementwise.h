// What the elementwise engines of the CPU and of the GPU share.
//
// A formula is a struct with prepared<T>(), which reads its scalars once and returns the function of one element in the
// compute type. The function's arguments are the operator's tensors, in the order of the declaration, without those
// that are parameters. A function that draws has a member `seed`, and as its first argument the random word of the
// element.
#pragma once

#include <array>

#include "core/declaration/operator.h"

namespace fusedops {

template <class Function>
inline constexpr bool kDraws = requires(Function function) { function.seed; };

// The places of an operator's tensors.
template <const Signature& kOp>
consteval auto tensor_places() {
  constexpr auto kIsElements = [](const Input& input) { return input.kind == Kind::tensor && !input.parameter; };
  std::array<int, std::count_if(kOp.inputs.begin(), kOp.inputs.end(), kIsElements)> places{};
  size_t count = 0;
  for (size_t i = 0; i < kOp.inputs.size(); ++i)
    if (kIsElements(kOp.inputs[i])) places[count++] = static_cast<int>(i);
  return places;
}

// The elements of an operator's tensors.
template <const Signature& kOp, class T>
auto tensors_of(const Call& call) {
  constexpr auto kPlaces = tensor_places<kOp>();
  std::array<const T*, kPlaces.size()> tensors;
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i] = call.input<T>(kPlaces[i]);
  return tensors;
}

// The result of an elementwise operator: its only output.
template <const Signature& kOp>
const View& result_of(const Call& call) {
  static_assert(kOp.outputs.size() == 1);
  return call.outputs[0];
}

// The rule of an operator whose tensors have one floating dtype and one shape, and whose scalars have one element. The
// result is like the input whose dtype it has.
template <const Signature& kOp>
Status elementwise_rule(Rule& rule) {
  constexpr int kLike = input_of(kOp, kOp.outputs[0].dtype);
  FUSEDOPS_TRY(rule.floating(kLike));
  for (int i = 0; i < static_cast<int>(kOp.inputs.size()); ++i) {
    const Input& input = kOp.inputs[i];
    if (input.kind == Kind::scalar) FUSEDOPS_TRY(rule.one_element(i, kLike));
    if (input.kind == Kind::tensor && !input.parameter && i != kLike) FUSEDOPS_TRY(rule.same_as(i, kLike));
  }
  rule.outputs[0] = rule.inputs[kLike];
  return {};
}

}  // namespace fusedops
