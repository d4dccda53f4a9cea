// Reductions of a row in an order that depends on its length alone: within a block, then block after block.
#pragma once

#include <limits>

#include "core/cpu/sum.h"
#include "core/program/functions.h"
#include "core/program/program.h"

namespace fusedops::program::interpreter {

// The sum of term(i). Short rows are summed sequentially.
template <class A, class Term>
A sum_of_terms(int64_t n, Term term) {
  if (n >= fusedops::cpu::kAccumulators) return fusedops::cpu::interleaved_sum<A>(n, term);
  A sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += term(i);
  return sum;
}

template <class A>
A sum_of(const A* values, int64_t n) {
  return sum_of_terms<A>(n, [=](int64_t i) { return values[i]; });
}

template <class A>
A sum_of_products(const A* a, const A* b, int64_t n) {
  return sum_of_terms<A>(n, [=](int64_t i) { return a[i] * b[i]; });
}

// The extreme of n > 0 values; choose(a, b) returns one of the two.
template <class A, class Choose>
A extreme_of(const A* values, int64_t n, Choose choose) {
  constexpr int kLanes = fusedops::cpu::kAccumulators;
  A extreme = values[0];
  if (n >= kLanes) {
    A lanes[kLanes];
    std::copy_n(values, kLanes, lanes);
    int64_t i = kLanes;
    for (; i + kLanes <= n; i += kLanes)
      for (int k = 0; k < kLanes; ++k) lanes[k] = choose(lanes[k], values[i + k]);
    for (; i < n; ++i) lanes[0] = choose(lanes[0], values[i]);
    extreme = lanes[0];
    for (int k = 1; k < kLanes; ++k) extreme = choose(extreme, lanes[k]);
    return extreme;
  }
  for (int64_t i = 1; i < n; ++i) extreme = choose(extreme, values[i]);
  return extreme;
}

template <class A>
A fold_of(Fold fold, const A* values, int64_t n) {
  if (fold == Fold::max) return extreme_of(values, n, [](A a, A b) { return max_(a, b); });
  if (fold == Fold::min) return extreme_of(values, n, [](A a, A b) { return min_(a, b); });
  return sum_of(values, n);
}

// The reduction of an empty row, before finished().
inline double neutral(Fold fold) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return fold == Fold::max ? -kInfinity : fold == Fold::min ? kInfinity : 0;
}

// The reduction of n equal values.
inline double fold_of_equal(Fold fold, double value, int64_t n) {
  return fold == Fold::max || fold == Fold::min ? value : value * static_cast<double>(n);
}

// Sums of many blocks are accumulated in double, where their order hardly matters.
inline double joined(Fold fold, double before, double block) {
  if (fold == Fold::max) return max_(before, block);
  if (fold == Fold::min) return min_(before, block);
  return before + block;
}

inline double finished(Fold fold, double total, int64_t cols) {
  return fold == Fold::mean ? total / static_cast<double>(cols) : total;
}

}  // namespace fusedops::program::interpreter
