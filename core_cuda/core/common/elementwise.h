// Declarations shared by the elementwise engines for CPU and GPU.
//
// A formula is a struct with prepared<T>(), which reads its scalars once and returns the function of one element in the
// compute type. The function's arguments are the operator's tensors without parameters, in the order of the
// declaration. A formula that draws random words has runs(), the places of its elements. Its function has a member
// `seed`, and takes the element's word first.
#pragma once

#include <array>

#include "core/declaration/operator.h"

namespace fusedops {

template <class Function>
inline constexpr bool kDraws = requires(Function function) { function.seed; };

// Indices of an operator's tensors among its inputs.
template <const Signature& kOp>
consteval auto tensor_places() {
  constexpr auto kIsElements = [](const Input& input) { return input.kind == Kind::tensor && !input.parameter; };
  std::array<int, std::count_if(kOp.inputs.begin(), kOp.inputs.end(), kIsElements)> indices{};
  size_t count = 0;
  for (size_t i = 0; i < kOp.inputs.size(); ++i)
    if (kIsElements(kOp.inputs[i])) indices[count++] = static_cast<int>(i);
  return indices;
}

// Pointers to the elements of an operator's tensors.
template <const Signature& kOp, class T>
auto tensors_of(const Call& call) {
  constexpr auto kPlaces = tensor_places<kOp>();
  std::array<const T*, kPlaces.size()> tensors;
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i] = call.input<T>(kPlaces[i]);
  return tensors;
}

// The only output of an elementwise operator.
template <const Signature& kOp>
const View& result_of(const Call& call) {
  static_assert(kOp.outputs.size() == 1);
  return call.outputs[0];
}

// The rule of an operator whose tensors have one floating dtype and one shape, and whose scalars have one element. The
// result has the shape of the input that gives its dtype.
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
