// Masks and dropout on compute capability 9.x: which scores of a tile are kept, as bits. Neighbouring keys of a query
// are one lane's: it reads their bytes of the mask at once, or draws for them, and hands the bits to the lanes that
// have the scores.
#pragma once

#include "ops/attention/attention_dropout.cuh"
#include "ops/attention/attention_sm90.cuh"

namespace fusedops::cuda::sm90 {

// A bit for each of 32 numbers: whether it is in the range.
__device__ inline uint32_t bits_of(Range range) {
  const auto below = [](int end) { return end <= 0 ? 0u : end >= 32 ? ~0u : (1u << end) - 1; };
  return below(range.end) & ~below(range.begin);
}

// A bit for each of four bytes: whether it is not zero.
__device__ inline uint32_t bits_of_bytes(uint32_t bytes) {
  bytes |= bytes >> 4, bytes |= bytes >> 2, bytes |= bytes >> 1;  // a byte's lowest bit: any of its bits
  return (bytes & 0x01010101) * 0x01020408 >> 24;
}

// The rows of the mask for a head of a sequence.
struct MaskRows {
  const uint8_t* first;
  int64_t stride;
  bool has_columns, is_aligned;

  MaskRows() = default;
  __device__ MaskRows(const Attention& call, int64_t b, const Sequence& sequence, int head) {
    const int64_t row = call.row(b, sequence, head, 0);
    first = call.mask.row(row);
    stride = sequence.queries > 1 ? call.mask.row(row + 1) - first : 0;
    has_columns = call.mask.has_columns();
    is_aligned = call.keys % 16 == 0 && reinterpret_cast<uintptr_t>(first) % 16 == 0;  // so are the other rows then
  }

  // A bit for each of kCount keys, at a multiple of 16: whether the mask keeps it. Not of keys at or behind `end`.
  template <int kCount>
  __device__ uint32_t kept(int query, int key, int end) const {
    const uint8_t* const row = first + query * stride;
    if (!has_columns) return *row ? ~0u >> (32 - kCount) : 0;
    uint32_t bits = 0;
    if (is_aligned) {
#pragma unroll
      for (int i = 0; i < kCount; i += 16) {
        if (key + i >= end) continue;
        const auto bytes = *reinterpret_cast<const uint4*>(row + key + i);
        bits |= (bits_of_bytes(bytes.x) | bits_of_bytes(bytes.y) << 4 | bits_of_bytes(bytes.z) << 8 |
                 bits_of_bytes(bytes.w) << 12)
                << i;
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kCount && key + i < end; ++i) bits |= uint32_t(row[key + i] != 0) << i;
    }
    return bits;
  }
};

// The forward's: each lane of a quad has 32 of the kColumns keys of both of its rows.
template <int kColumns>
struct RowBits {
  uint32_t own[2];

  // Calls body(i, kept) for each value of an accumulator.
  template <class Body>
  __forceinline__ __device__ void each(Body&& body) const {
    const int pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int lane = 0; lane < (kColumns + 31) / 32; ++lane) {
        const uint32_t kept = __shfl_sync(0xffffffff, own[r], lane, 4) >> pair;
#pragma unroll
        for (int tile = lane * 4; tile < lane * 4 + 4 && tile < kColumns / 8; ++tile)
#pragma unroll
          for (int side = 0; side < 2; ++side) body(tile * 4 + r * 2 + side, kept >> (tile % 4 * 8 + side) & 1);
      }
  }
};

// The backward's, where a row is a key and a column a query: a lane has the 16 keys of its warp for every 32nd query,
// two queries in each word.
template <int kQueries>
struct ColumnBits {
  static constexpr int kWords = kQueries / 64;
  uint32_t own[kWords] = {};

  // `bits` of the 16 keys, of the lane's own query of each 32.
  template <class Bits>
  __forceinline__ __device__ void find(Bits&& bits) {
#pragma unroll
    for (int i = 0; i < 2 * kWords; ++i) own[i / 2] |= bits(i * 32 + threadIdx.x % 32) << (i % 2 * 16);
  }

  template <class Body>
  __forceinline__ __device__ void each(Body&& body) const {
    const int lane = threadIdx.x % 32, pair = lane % 4 * 2;
#pragma unroll
    for (int word = 0; word < kWords; ++word)
#pragma unroll
      for (int tile = 0; tile < 4; ++tile)
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const uint32_t kept = __shfl_sync(0xffffffff, own[word], tile * 8 + pair + side) >> (lane / 4);
#pragma unroll
          for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int r = 0; r < 2; ++r)
              body(((word * 2 + half) * 4 + tile) * 4 + r * 2 + side, kept >> (half * 16 + r * 8) & 1);
        }
  }
};

}  // namespace fusedops::cuda::sm90
