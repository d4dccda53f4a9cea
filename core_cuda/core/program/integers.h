// Boolean and integer inputs of programs, for the host and for NVRTC.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/common/element.h"

namespace fusedops::program {

// A byte; every nonzero value is true, since frameworks may reinterpret memory.
struct Boolean {
  uint8_t byte;
};

template <class T>
inline constexpr bool is_integral_element =
    std::is_same_v<T, Boolean> || std::is_same_v<T, uint8_t> || std::is_same_v<T, int8_t> ||
    std::is_same_v<T, int16_t> || std::is_same_v<T, int32_t> || std::is_same_v<T, int64_t>;

// An element in the compute type A, rounded to nearest even as in the frameworks' conversions.
template <class A, class T>
FUSEDOPS_HD A value_of(T element) {
  if constexpr (std::is_same_v<T, Boolean>)
    return element.byte ? A(1) : A(0);
  else if constexpr (is_integral_element<T>)
    return static_cast<A>(element);
  else
    return static_cast<A>(to_compute(element));
}

}  // namespace fusedops::program
