// A thread's elements of a softmax row: load, reduction and store.
#pragma once

#include "core/cuda/rounding.cuh"
#include "core/cuda/row_cluster.cuh"
#include "core/cuda/row_variants.cuh"
#include "ops/attention/softmax.h"
#include "ops/attention/softmax_base.cuh"

namespace fusedops::cuda {

struct NoMask {};

// A bias, beside a mask or not.
struct MaskAndBias {
  BroadcastMask mask;
  bool has_mask;
  BroadcastBias bias;
};

// Bit i of `count` is set if element i is visible.
template <int kSize>
__device__ uint32_t visible_bits(const uint8_t* mask, int64_t count) {
  uint32_t bits = 0;
  if (count >= kSize && reinterpret_cast<uintptr_t>(mask) % kSize == 0) {
    if constexpr (kSize == 2) {
      const uint16_t bytes = *reinterpret_cast<const uint16_t*>(mask);
      bits = uint32_t((bytes & 0xff) != 0) | uint32_t(bytes > 0xff) << 1;
    } else {
#pragma unroll
      for (int word = 0; word < kSize / 4; ++word) {
        const uint32_t bytes = reinterpret_cast<const uint32_t*>(mask)[word];
        bits |= (__vsetne4(bytes, 0) * 0x01020408u >> 24) << 4 * word;  // the product packs 4 bytes into 4 bits
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kSize; ++i)
      if (i < count && mask[i]) bits |= 1u << i;
  }
  return bits;
}

// Maximum of some elements of a row, and sum of exponentials relative to it.
template <class A>
struct MaxSum {
  A max, sum;
};

// Combines `count` blocks, a power of two; each lane of a warp has the value of one block.
template <class A>
__device__ MaxSum<A> joined(const MaxSum<A>* of_blocks, int count, A factor) {
  const MaxSum<A> mine = of_blocks[threadIdx.x & (count - 1)];
  MaxSum<A> all = mine;
  for (int offset = 1; offset < count; offset *= 2) all.max = fmax(all.max, exchanged(all.max, offset));
  all.sum = product(mine.sum, rescale_factor(mine.max, all.max, factor));
  for (int offset = 1; offset < count; offset *= 2) all.sum += exchanged(all.sum, offset);
  return all;
}

// A thread's elements of a row, or of a tile of it. Elements that are masked or past the end are -inf.
//
// Each thread computes exponentials relative to its own running maximum and rescales its sum to the maximum of the row.
// Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
//
// The two halves of a thread have separate sums but share a maximum. In the variant for few rows they are two adjacent
// threads, which exchange their maxima: the bits are the same.
template <RowVariant kVariant, bool kAligned, int kThreads, class T, class Mask>
class SoftmaxRow {
 public:
  using A = compute_t<T>;

  // `end`: the end of this block's columns.
  __device__ SoftmaxRow(const Softmax<T>& call, const Mask& masks, const RowThread<kThreads>& me, int64_t end)
      : call_(call), masks_(masks), me_(me), end_(end) {
    find_row();
  }

  __device__ void load(int64_t tile = 0) {
    const T* x = call_.x + me_.row * call_.x_stride;
    set_values(tile, [&](int, int64_t at, int64_t count) { return load_row_pack<kAligned>(x + at, count); });
  }

  // Split into an early prefetch and a load, for RowCluster::each_row.
  __device__ void prefetch(int64_t row) const {
    const T* x = call_.x + row * call_.x_stride;
    const int64_t end = min(end_, call_.end(row));
#pragma unroll
    for (int p = 0; p < kPacks; ++p) next_row().prefetch(0, p, x + me_.template at<T>(p), me_.template at<T>(p) < end);
    next_row().commit();
  }

  __device__ void wait() {
    find_row();
    next_row().wait();
    set_values(0, [&](int p, int64_t, int64_t) { return next_row().get(0, p); });
  }

  // Reduces and stores a loaded row. of_row combines the results of the blocks that share the row.
  template <class OfRow>
  __device__ void finish(A (&scratch)[2][32], OfRow of_row) {
    Seen seen;
    see(seen);
    const MaxSum<A> row = of_row(of_block(seen, scratch));
    store(0, rescale_factor(seen.max, row.max, call_.factor) / row.sum);
  }

  // Loads, reduces and stores a row that does not fit into registers.
  template <class OfRow>
  __device__ void finish_long(const RowGroups& groups, A (&scratch)[2][32], OfRow of_row) {
    Seen seen;
    groups.each_tile(call_.cols, [&](int64_t tile) {
      load(tile);
      see(seen);
    });
    const MaxSum<A> row = of_row(of_block(seen, scratch));
    groups.each_tile(call_.cols, [&](int64_t tile) {
      load(tile);
      exponentials(row.max);
      store(tile, A(1) / row.sum);
    });
  }

 private:
  static constexpr bool kBiased = std::is_same_v<Mask, MaskAndBias>;
  static constexpr int kPacks = packs_of(kVariant), kSize = kPackSize<T>, kHalves = kPacks / 2;
  static constexpr uint32_t kAll = (1u << kSize) - 1;

  static __device__ NextRow<T, kPacks> next_row() { return NextRow<T, kPacks>(prefetch_memory()); }

  __device__ void find_row() {
    unmasked_ = 0, mask_ = nullptr;
    if (me_.row >= call_.rows) return;
    unmasked_ = min(end_, call_.end(me_.row));
    if constexpr (std::is_same_v<Mask, BroadcastMask>) find_mask(masks_);
    if constexpr (kBiased) {
      bias_ = masks_.bias.place(me_.row);
      if (masks_.has_mask) find_mask(masks_.mask);
    }
  }

  __device__ void find_mask(const BroadcastMask& mask) {
    mask_ = mask.row(me_.row);
    if (mask.has_columns()) return;
    if (!*mask_) unmasked_ = 0;  // one value for the whole row
    mask_ = nullptr;
  }

  template <class GetPack>
  __device__ void set_values(int64_t tile, GetPack get_pack) {
    Pack<T> packs[kPacks];
    visible_ = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t at = me_.template at<T>(tile, p), count = unmasked_ - at;
      packs[p] = get_pack(p, at, count);
      uint32_t bits = count >= kSize ? kAll : count > 0 ? (1u << count) - 1 : 0;
      if constexpr (!std::is_same_v<Mask, NoMask>)
        if (mask_ && count > 0) bits &= visible_bits<kSize>(mask_ + at, count);
      visible_ |= bits << p * kSize;
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        values_[p][i] = kBiased ? element(packs[p], i) : call_.multiplier * element(packs[p], i);
      if constexpr (kBiased) add_bias(p, me_.template at<T>(tile, p));
      if (are_all_visible(p)) continue;
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        if (!is_visible(p, i)) values_[p][i] = kNegInf<A>;
    }
  }

  // Multiplies visible elements and adds their bias, rounding once: whether a compiler fuses the two would otherwise
  // differ between variants, and so would the bits. Minus infinity masks.
  __device__ void add_bias(int p, int64_t at) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      if (!is_visible(p, i)) continue;
      const A bias = masks_.bias.template at<T>(bias_, at + i);
      values_[p][i] = fused(call_.multiplier, values_[p][i], bias);
      if (bias == kNegInf<A>) visible_ &= ~(1u << (p * kSize + i));
    }
  }

  // Running statistics of this thread.
  struct Seen {
    A max = kNegInf<A>, sums[kHalves] = {};
  };

  // Replaces the values by exponentials and adds them.
  __device__ void see(Seen& seen) {
    const A before = seen.max;
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kSize; ++i) seen.max = fmax(seen.max, values_[p][i]);
    if constexpr (kVariant == RowVariant::few) seen.max = fmax(seen.max, exchanged(seen.max, 1));
    if constexpr (kVariant == RowVariant::tiles) {
      const A rescale = rescale_factor(before, seen.max, call_.factor);
#pragma unroll
      for (A& sum : seen.sums) sum = product(sum, rescale);
    }
    exponentials(base_of(seen.max));
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kSize; ++i) seen.sums[p % kHalves] += values_[p][i];
  }

  __device__ void exponentials(A base) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kSize; ++i) values_[p][i] = exp2_((values_[p][i] - base) * call_.factor);
  }

  // Maximum and sum over the threads of the row in this block.
  __device__ MaxSum<A> of_block(const Seen& seen, A (&scratch)[2][32]) const {
    const A max = row_reduce(me_, seen.max, scratch[0], [](A a, A b) { return fmax(a, b); });
    const A rescale = rescale_factor(seen.max, max, call_.factor);
    A sum = product(seen.sums[0], rescale);
    if constexpr (kHalves == 2) sum += product(seen.sums[1], rescale);
    return {max, row_reduce(me_, sum, scratch[1], [](A a, A b) { return a + b; })};
  }

  __device__ void store(int64_t tile, A factor) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t at = me_.template at<T>(tile, p), count = me_.row < call_.rows ? end_ - at : 0;
      if (count <= 0) return;
      A shares[kSize];
#pragma unroll
      for (int i = 0; i < kSize; ++i) shares[i] = values_[p][i] * factor;
      if (!are_all_visible(p)) {  // zero even in a row of NaN
#pragma unroll
        for (int i = 0; i < kSize; ++i)
          if (!is_visible(p, i)) shares[i] = 0;
      }
      store_row_pack<kAligned>(rounded<T>(shares), call_.y + me_.row * call_.cols + at, count);
    }
  }

  __device__ bool is_visible(int p, int i) const { return visible_ >> (p * kSize + i) & 1; }
  __device__ bool are_all_visible(int p) const { return (visible_ >> p * kSize & kAll) == kAll; }

  const Softmax<T>& call_;
  const Mask& masks_;
  const RowThread<kThreads>& me_;
  const int64_t end_;
  int64_t unmasked_;     // columns from here on are masked and not read
  const uint8_t* mask_;  // null: none
  int64_t bias_;         // place of the row
  A values_[kPacks][kSize];
  uint32_t visible_;  // one bit per value
};

}  // namespace fusedops::cuda
