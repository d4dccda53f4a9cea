// Activations for host and device: the value and slope of each, built from the functions of formulas.h.
//
// A GPU that streams a 16-bit tensor at memory speed has time for about 27 instructions per element, or for three
// divisions or powers. Hence each activation has one power and at most one reciprocal.
#pragma once

#include <string_view>
#include <tuple>
#include <utility>

#include "core/common/formulas.h"
#include "core/declaration/signature.h"

namespace fusedops {
namespace activations {

struct Identity {
  template <class A>
  static FUSEDOPS_HD Activated<A> at(A x) {
    return {x, A(1)};
  }
};

// NaN is propagated, and its gradient passes. The slope at 0 is 0.
struct Relu {
  template <class A>
  static FUSEDOPS_HD Activated<A> at(A x) {
    return {choose(x <= 0, A(0), x), choose(x <= 0, A(0), A(1))};
  }
};

// x Phi(x), the exact GELU. Hendrycks and Gimpel, "Gaussian error linear units (GELUs)", 2016.
struct Gelu {
  template <class A>
  static FUSEDOPS_HD Activated<A> at(A x) {
    const Activated<A> phi = normal(x);
    return {x * phi.value, x * phi.slope + phi.value};
  }
};

// x (1 + tanh(u)) / 2 = x logistic(2u) with 2u = x (k + l x²), from the same paper.
struct GeluTanh {
  template <class A>
  static FUSEDOPS_HD Activated<A> at(A x) {
    constexpr double k = 1.5957691216057307118, l = 0.044715 * k;  // k = 2 sqrt(2 / pi)
    const A squared = choose(x * x > 1000, A(1000), x * x);        // the function is flat there; no inf in the slope
    const A t = exp2_or_zero(-magnitude(x * (A(k * kLog2E) + A(l * kLog2E) * squared)));
    const Activated<A> s = logistic(x, t);
    return {x * s.value, x * s.slope * (A(k) + A(3 * l) * squared) + s.value};
  }
};

// x logistic(x). Elfwing, Uchibe and Doya, "Sigmoid-weighted linear units ...", 2017.
struct Silu {
  template <class A>
  static FUSEDOPS_HD Activated<A> at(A x) {
    const Activated<A> s = logistic(x, decay(x));
    return {x * s.value, x * s.slope + s.value};
  }
};

struct Sigmoid {
  template <class A>
  static FUSEDOPS_HD Activated<A> at(A x) {
    return logistic(x, decay(x));
  }
};

struct Tanh {
  template <class A>
  static FUSEDOPS_HD Activated<A> at(A x) {
    return tanh_(x);
  }
};

using All = std::tuple<Identity, Relu, Gelu, GeluTanh, Silu, Sigmoid, Tanh>;
inline constexpr std::string_view kNames[] = {"identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"};
inline constexpr int kCount = std::tuple_size_v<All>;

// The attribute that names one, with this default.
constexpr Attribute attribute(const char* value) { return {"activation", Type::string, value, kNames}; }

// The upstream gradient times the slope. Relu selects instead of multiplying, since inf * 0 would be NaN.
template <class Activation, class A>
FUSEDOPS_HD A apply_slope(A dy, A slope) {
  if constexpr (std::is_same_v<Activation, Relu>) return choose(slope == 0, A(0), dy);
  return dy * slope;
}

// The index of a name; kCount if there is none.
inline int index_of(std::string_view name) {
  int index = 0;
  while (index < kCount && kNames[index] != name) ++index;
  return index;
}

// Calls body(Activation()) with the activation of that index.
template <int kIndex = 0, class Body>
constexpr auto dispatch(int index, Body&& body) {
  if constexpr (kIndex + 1 < kCount)
    if (index != kIndex) return dispatch<kIndex + 1>(index, body);
  return body(std::tuple_element_t<kIndex, All>());
}

}  // namespace activations
}  // namespace fusedops
