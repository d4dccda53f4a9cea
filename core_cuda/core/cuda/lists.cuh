// The CUDA engine for operators over lists of tensors. Limit: memory bandwidth; every element is read and written once.
//
// Tensor addresses are kernel parameters, which are part of the launch: nothing is copied to the GPU beforehand, and no
// host memory must outlive the launch.
#pragma once

#include <algorithm>
#include <limits>

#include "core/common/lists.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"

namespace fusedops::cuda {

// Bytes of kernel parameters for a table. Drivers for CUDA 13 accept 32764 bytes of parameters (CUDA Programming Guide,
// "__global__ Function Parameters"), older ones 4096.
inline constexpr int kTableBytes = CUDART_VERSION >= 13000 ? 32000 : 3840;

// The tensors at some indices of the lists, and the assignment of chunks to blocks. Empty tensors are left out.
template <int kLists>
struct PlaceTable {
  static constexpr int kMost = (kTableBytes - 16) / (8 * kLists + 8 + 4 + 4);

  void* data[kLists][kMost];
  int64_t sizes[kMost];
  int32_t places[kMost];  // indices in the lists
  int32_t first_blocks[kMost + 1];
  int32_t count = 0;

  __device__ int find(int block) const {
    int low = 0, high = count;  // invariant: first block of low <= block < first block of high
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first_blocks[middle] <= block)
        low = middle;
      else
        high = middle;
    }
    return low;
  }
};

// Items per block: two packs per thread, so that blocks of the next wave load while others compute.
inline constexpr int64_t kUpdateChunk = 4096;

// Calls body(table) for tables that together cover all tensors, in order.
template <int kLists, class Body>
Status for_each_table(const std::span<const View> (&lists)[kLists], int64_t chunk, Body&& body) {
  PlaceTable<kLists> table;
  table.first_blocks[0] = 0;
  const auto flush = [&]() -> Status {
    if (table.count == 0) return {};
    FUSEDOPS_TRY(body(table));
    table.count = 0;
    return {};
  };
  for (size_t place = 0; place < lists[0].size(); ++place) {
    const int64_t size = lists[0][place].numel(), chunks = chunks_of(size, chunk);
    if (size == 0) continue;
    if (chunks > std::numeric_limits<int32_t>::max())
      return Status::error("fusedops: a tensor of a list has more than 2^43 elements");
    const bool has_room = table.count < PlaceTable<kLists>::kMost &&
                          chunks <= std::numeric_limits<int32_t>::max() - table.first_blocks[table.count];
    if (!has_room) FUSEDOPS_TRY(flush());
    const int at = table.count++;
    for (int k = 0; k < kLists; ++k) table.data[k][at] = lists[k][place].data;
    table.sizes[at] = size;
    table.places[at] = static_cast<int32_t>(place);
    table.first_blocks[at + 1] = table.first_blocks[at] + static_cast<int32_t>(chunks);
  }
  return flush();
}

// Items per thread at a time: whole packs of every list.
template <class Update>
constexpr int items_per_thread() {
  return []<size_t... K>(std::index_sequence<K...>) {
    return std::max({kPackSize<ElementOf<Update, K>>...});
  }(std::make_index_sequence<kListsOf<Update>>());
}

template <class T, int kItems>
__device__ void load_items(const T* from, compute_t<T> (&values)[kItems]) {
#pragma unroll
  for (int p = 0; p < kItems / kPackSize<T>; ++p) {
    Pack<T> pack;
    *reinterpret_cast<int4*>(&pack) = *reinterpret_cast<const int4*>(from + p * kPackSize<T>);
#pragma unroll
    for (int i = 0; i < kPackSize<T>; ++i) values[p * kPackSize<T> + i] = element(pack, i);
  }
}

template <class T, int kItems>
__device__ void store_items(const compute_t<T> (&values)[kItems], T* to) {
#pragma unroll
  for (int p = 0; p < kItems / kPackSize<T>; ++p) {
    compute_t<T> some[kPackSize<T>];
#pragma unroll
    for (int i = 0; i < kPackSize<T>; ++i) some[i] = values[p * kPackSize<T> + i];
    const Pack<T> pack = rounded<T>(some);
    *reinterpret_cast<int4*>(to + p * kPackSize<T>) = *reinterpret_cast<const int4*>(&pack);
  }
}

template <class Update, size_t... K>
__device__ void update_chunk(const Update& update, const PlaceTable<kListsOf<Update>>& table,
                             std::index_sequence<K...>) {
  constexpr int kItems = items_per_thread<Update>();
  using Compute = compute_t<ElementOf<Update, 0>>;
  const int at = table.find(static_cast<int>(blockIdx.x));
  const auto function = update.prepared(table.places[at]);
  if (function.skipped) return;
  const int64_t begin = int64_t(static_cast<int>(blockIdx.x) - table.first_blocks[at]) * kUpdateChunk;
  const int n = static_cast<int>(min(kUpdateChunk, table.sizes[at] - begin));
  const auto data =
      std::tuple<ElementOf<Update, K>*...>{static_cast<ElementOf<Update, K>*>(table.data[K][at]) + begin...};

  const bool aligned = ((reinterpret_cast<uintptr_t>(std::get<K>(data)) % 16 == 0) && ...);
  const int whole = aligned ? n / kItems * kItems : 0;
  for (int i = int(threadIdx.x) * kItems; i < whole; i += kThreads * kItems) {
    Compute values[sizeof...(K)][kItems];
    const auto load = [&](auto place) {
      constexpr size_t k = decltype(place)::value;
      if constexpr (ListOf<Update, k>::kIsRead) load_items(std::get<k>(data) + i, values[k]);
    };
    (load(std::integral_constant<size_t, K>()), ...);
#pragma unroll
    for (int item = 0; item < kItems; ++item) function(values[K][item]...);
    const auto store = [&](auto place) {
      constexpr size_t k = decltype(place)::value;
      if constexpr (ListOf<Update, k>::kIsWritten) store_items(values[k], std::get<k>(data) + i);
    };
    (store(std::integral_constant<size_t, K>()), ...);
  }
  for (int i = whole + int(threadIdx.x); i < n; i += kThreads) {
    Compute values[sizeof...(K)];
    const auto load = [&](auto place) {
      constexpr size_t k = decltype(place)::value;
      if constexpr (ListOf<Update, k>::kIsRead) values[k] = to_compute(std::get<k>(data)[i]);
    };
    (load(std::integral_constant<size_t, K>()), ...);
    function(values[K]...);
    const auto store = [&](auto place) {
      constexpr size_t k = decltype(place)::value;
      if constexpr (ListOf<Update, k>::kIsWritten) std::get<k>(data)[i] = from_compute<ElementOf<Update, k>>(values[k]);
    };
    (store(std::integral_constant<size_t, K>()), ...);
  }
}

template <class Update>
__global__ void __launch_bounds__(kThreads)
    update_lists_kernel(const __grid_constant__ PlaceTable<kListsOf<Update>> table,
                        const __grid_constant__ Update update) {
  begin_kernel();
  update_chunk(update, table, std::make_index_sequence<kListsOf<Update>>());
}

template <class Update>
Status update_lists(const Context& context, const Update& update, const ListViews<Update>& lists) {
  return for_each_table(lists, kUpdateChunk, [&](const PlaceTable<kListsOf<Update>>& table) {
    return launch(context, update_lists_kernel<Update>, table.first_blocks[table.count], kThreads, table, update);
  });
}

}  // namespace fusedops::cuda
