// Conversion between elements in memory and the compute type.
#pragma once

#include "core/cpu/elementwise.h"
#include "core/program/integers.h"

namespace fusedops::program::interpreter {

// Calls body(Tag<T>()) with the element type of a tensor whose compute type is A.
template <class A, class Body>
void with_type(DType dtype, Body&& body) {
  if constexpr (std::is_same_v<A, double>) {
    body(Tag<double>());
  } else {
    if (dtype == DType::f16) return body(Tag<f16>());
    if (dtype == DType::bf16) return body(Tag<bf16>());
    body(Tag<float>());
  }
}

// with_type() for inputs, which may also be booleans or integers.
template <class A, class Body>
void with_input_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::boolean:
      return body(Tag<Boolean>());
    case DType::u8:
      return body(Tag<uint8_t>());
    case DType::i8:
      return body(Tag<int8_t>());
    case DType::i16:
      return body(Tag<int16_t>());
    case DType::i32:
      return body(Tag<int32_t>());
    case DType::i64:
      return body(Tag<int64_t>());
    default:
      return with_type<A>(dtype, body);
  }
}

template <class T, class A>
void read(const T* from, A* to, int64_t n) {
  if constexpr (std::is_same_v<T, A>)
    std::copy_n(from, n, to);
  else if constexpr (is_integral_element<T>)
    for (int64_t i = 0; i < n; ++i) to[i] = value_of<A>(from[i]);
  else
    fusedops::cpu::widen(from, to, n);
}

// n <= fusedops::cpu::kBlock.
template <class T, class A>
void write(const A* from, T* to, int64_t n, bool streamed) {
  if constexpr (std::is_same_v<T, A>) {
    if (streamed)
      fusedops::cpu::stream(from, to, n);
    else
      std::copy_n(from, n, to);
  } else if (streamed) {
    T narrowed[fusedops::cpu::kBlock];
    fusedops::cpu::narrow(from, narrowed, n);
    fusedops::cpu::stream(narrowed, to, n);
  } else {
    fusedops::cpu::narrow(from, to, n);
  }
}

}  // namespace fusedops::program::interpreter
