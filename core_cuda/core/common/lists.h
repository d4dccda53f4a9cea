// What the engines of the CPU and of the GPU share for operators over lists of tensors. Several lists run in parallel:
// the tensors in one place are of one size, and an element of each is one item of the work.
//
// An update is a struct with `Lists`, a tuple of List types in the order in which it gives the lists' views, and
// prepared(place), which reads what holds for the tensors in that place and returns the function of one item: it is
// called with an element of each list in the compute type, changes those that are written, and has a `skipped`, which
// says that nothing is to be written there.
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

// The lists of a call, one of each of the update's.
template <class Update>
using ListViews = std::span<const View>[kListsOf<Update>];

// The work is cut into chunks of so many items, none of two places. Which sums are added follows from it.
inline constexpr int64_t kChunk = 16384;

inline int64_t chunks_of(int64_t items, int64_t chunk = kChunk) { return (items + chunk - 1) / chunk; }

// a * b + c, rounded once where the processor can. Which products and sums round as one is written out, and not left
// to the compiler: vectors, what is left of them, and aligned and other memory must give the same bits.
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
