// Elements of tensors, read in the compute type and written from it.
#pragma once

#include "core/cpu/elementwise.h"

namespace fusedops::program::interpreter {

// Calls body(Tag<T>()) with the element type of a tensor that is computed in A.
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

template <class T, class A>
void read(const T* from, A* to, int64_t n) {
  if constexpr (std::is_same_v<T, A>)
    std::copy_n(from, n, to);
  else
    fusedops::cpu::widen(from, to, n);
}

// n <= kBlock of fusedops::cpu.
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
