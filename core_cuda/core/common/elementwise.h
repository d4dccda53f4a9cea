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

}  // namespace fusedops
