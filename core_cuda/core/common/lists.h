// Declarations shared by the CPU and GPU engines for operators over lists of tensors. Several lists run in parallel:
// tensors at the same index have the same size, and one element of each is an item of work.
//
// An update is a struct with `Lists`, a tuple of List types in the order of the lists' views, and prepared(place),
// which reads the values for the tensors at that index and returns the function of one item. The function takes an
// element of each list in the compute type and changes the written ones. If its member `skipped` is true, nothing is
// written.
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <utility>

#include "core/common/element.h"
#include "core/declaration/view.h"

namespace fusedops {

template <class T, bool kRead, bool kWritten>
struct List {
  using Element = T;
  static constexpr bool kIsRead = kRead, kIsWritten = kWritten;
};
template <class T>
using Read = List<T, true, false>;
template <class T>
using Written = List<T, false, true>;
template <class T>
using Updated = List<T, true, true>;

template <class Update>
inline constexpr int kListsOf = std::tuple_size_v<typename Update::Lists>;

template <class Update, size_t kPlace>
using ListOf = std::tuple_element_t<kPlace, typename Update::Lists>;

template <class Update, size_t kPlace>
using ElementOf = typename ListOf<Update, kPlace>::Element;

// The lists of a call, in the order of Update::Lists.
template <class Update>
using ListViews = std::span<const View>[kListsOf<Update>];

// Items per chunk of work. A chunk lies within one tensor. The order of sums depends on it.
inline constexpr int64_t kChunk = 16384;

inline int64_t chunks_of(int64_t items, int64_t chunk = kChunk) { return (items + chunk - 1) / chunk; }

// a * b + c, rounded once if the processor can. Fused operations are written out instead of left to the compiler:
// vectors, their remainders, and unaligned memory must give the same bits.
FUSEDOPS_HD double multiply_add(double a, double b, double c) {
#if defined(__CUDA_ARCH__) || defined(__FMA__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}
FUSEDOPS_HD float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__) || defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

}  // namespace fusedops
