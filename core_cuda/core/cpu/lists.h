// The CPU engine for operators over lists of tensors: one pass on the framework's threads, vectorized by the compiler.
#pragma once

#include <algorithm>
#include <vector>

#include "core/common/lists.h"
#include "core/cpu/elementwise.h"
#include "core/cpu/widest.h"
#include "core/declaration/operator.h"

namespace fusedops::cpu {

// The index of each tensor's first chunk among all chunks, followed by the number of chunks.
inline std::vector<int64_t> first_chunks(std::span<const View> list) {
  std::vector<int64_t> first{0};
  first.reserve(list.size() + 1);
  for (const View& view : list) first.push_back(first.back() + chunks_of(view.numel()));
  return first;
}

// Calls body(place, begin, end) for the items of chunk `chunk`.
template <class Body>
void in_chunk(const std::vector<int64_t>& first, std::span<const View> list, int64_t chunk, Body&& body) {
  const auto place = std::upper_bound(first.begin(), first.end(), chunk) - first.begin() - 1;
  const int64_t begin = (chunk - first[place]) * kChunk;
  body(place, begin, std::min(begin + kChunk, list[place].numel()));
}

// Updates at most kBlock items, from item `at` on, of the views at one index.
template <class Update, class Function, size_t... K>
void update_block(const Function& function, const View* const (&views)[kListsOf<Update>], int64_t at, int64_t n,
                  std::index_sequence<K...>) {
  using Compute = compute_t<ElementOf<Update, 0>>;
  Compute buffers[sizeof...(K)][kBlock];
  const auto data = [&](auto place) {
    return static_cast<ElementOf<Update, decltype(place)::value>*>(views[decltype(place)::value]->data) + at;
  };
  const auto in_compute = [&](auto place) -> Compute* {
    constexpr size_t k = decltype(place)::value;
    if constexpr (std::is_same_v<ElementOf<Update, k>, Compute>) return data(place);
    if constexpr (ListOf<Update, k>::kIsRead && !std::is_same_v<ElementOf<Update, k>, Compute>)
      widen(data(place), buffers[k], n);
    return buffers[k];
  };
  [&](auto*... values) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) function(values[i]...);
  }(in_compute(std::integral_constant<size_t, K>())...);
  const auto write_back = [&](auto place) {
    constexpr size_t k = decltype(place)::value;
    if constexpr (ListOf<Update, k>::kIsWritten && !std::is_same_v<ElementOf<Update, k>, Compute>)
      narrow(buffers[k], data(place), n);
  };
  (write_back(std::integral_constant<size_t, K>()), ...);
}

template <class Update>
Status update_lists(const Context& context, const Update& update, const ListViews<Update>& lists) {
  const auto first = first_chunks(lists[0]);
  constexpr int64_t kNanosecondsPerChunk = 8000;
  context.parallel_for(first.back(), kNanosecondsPerChunk, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk)
      in_chunk(first, lists[0], chunk, [&](int64_t place, int64_t from, int64_t to) {
        const auto function = update.prepared(place);
        if (function.skipped) return;
        const View* views[kListsOf<Update>];
        for (int k = 0; k < kListsOf<Update>; ++k) views[k] = &lists[k][place];
        run_widest([&] {
          for (int64_t at = from; at < to; at += kBlock)
            update_block<Update>(function, views, at, std::min(kBlock, to - at),
                                 std::make_index_sequence<kListsOf<Update>>());
        });
      });
  });
  return {};
}

}  // namespace fusedops::cpu
