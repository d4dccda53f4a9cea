// Dropout: x / (1 - rate) for kept elements, else 0. An element is kept if its random word (philox.h) is at least rate
// * 2^32. Only the seed is saved: the backward generates the same words again.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/common/formulas.h"
#include "core/common/philox.h"
#include "core/declaration/operator.h"

namespace fusedops {

inline constexpr Attribute kRateAttribute{.name = "rate", .value = "0.5", .bounds = kBelowOne};

// Optional dropout within an operator. Positions are those in the whole tensor: such calls cannot be batched.
inline constexpr Input kOptionalSeed{.name = "seed", .kind = Kind::optional, .parameter = true};
inline constexpr Attribute kDropoutAttribute{.name = "dropout", .value = "0.0", .bounds = kBelowOne};

// An elementwise formula that draws random words: see elementwise.h.
struct Dropout {
  Dropout() = default;
  Dropout(const Call& call, int seed, double rate)
      : seed(call.input<uint64_t>(seed)),
        is_part(this->seed && call.inputs[seed]->sizes[0] == kPartNumbers),
        least(static_cast<uint32_t>(std::min(std::round(rate * 0x1p32), 0x1p32 - 1))),
        scale(1 / (1 - rate)) {}

  template <class A>
  struct Function {
    Seed seed;
    uint32_t least;
    A scale;

    FUSEDOPS_HD A operator()(uint32_t word, A x) const { return activations::choose(word >= least, x * scale, A(0)); }
  };

  template <class T>
  FUSEDOPS_HD auto prepared() const {
    using A = compute_t<T>;
    return Function<A>{{seed[0], seed[1]}, least, A(scale)};
  }

  // Places of elements in the whole tensor. They are read where they are used, and hold no registers before.
  FUSEDOPS_HD Runs runs() const { return is_part ? Runs{seed[2], static_cast<int64_t>(seed[3]), seed[4]} : Runs(); }
  FUSEDOPS_HD int64_t place(int64_t i) const { return is_part ? static_cast<int64_t>(runs().place(i)) : i; }

  static constexpr int64_t kNumbers = 2, kPartNumbers = 5;

  const uint64_t* seed = nullptr;  // in device memory; null: no dropout
  bool is_part = false;            // the seed has five numbers
  uint32_t least = 0;              // smallest word of a kept element
  double scale = 1;
};

// residual + dropout(x)
struct DropoutAdd {
  template <class A>
  struct Function {
    Seed seed;
    Dropout::Function<A> dropped;

    FUSEDOPS_HD A operator()(uint32_t word, A x, A residual) const { return residual + dropped(word, x); }
  };

  template <class T>
  FUSEDOPS_HD auto prepared() const {
    const auto dropped = dropout.template prepared<T>();
    return Function<compute_t<T>>{dropped.seed, dropped};
  }

  FUSEDOPS_HD Runs runs() const { return dropout.runs(); }

  Dropout dropout;
};

}  // namespace fusedops
