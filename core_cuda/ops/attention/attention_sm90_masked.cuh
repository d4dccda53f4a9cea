// Bit masks of the scores of a tile for masks and dropout on compute capability 9.x. One lane loads the mask bytes of
// adjacent keys of a query, or draws for them, and hands the bits to the lanes that hold the scores. A preprocessing
// kernel classifies tiles: those without a visible key are skipped, and the mask of fully visible ones is not read.
#pragma once

#include "ops/attention/attention_dropout.cuh"
#include "ops/attention/attention_sm90_bias.cuh"

namespace fusedops::cuda::sm90 {

// Bit i of 32 is set if i is in the range.
__device__ inline uint32_t bits_of(Range range) {
  const auto below = [](int end) { return end <= 0 ? 0u : end >= 32 ? ~0u : (1u << end) - 1; };
  return below(range.end) & ~below(range.begin);
}

// Bit i of 4 is set if byte i is not zero.
__device__ inline uint32_t bits_of_bytes(uint32_t bytes) {
  bytes |= bytes >> 4, bytes |= bytes >> 2, bytes |= bytes >> 1;  // ORs all bits of a byte into its lowest one
  return (bytes & 0x01010101) * 0x01020408 >> 24;
}

// Mask rows of a head of a sequence.
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
    is_aligned = call.keys % 16 == 0 && reinterpret_cast<uintptr_t>(first) % 16 == 0;  // then all rows are aligned
  }

  // Bits of kCount keys from `key` on, a multiple of 16: 1 if visible. Bits of keys from `end` on are undefined.
  template <int kCount>
  __device__ uint32_t visible(int query, int key, int end) const {
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

// Classifies tiles of kM queries and kN keys, one per warp. Limit: reading the mask once.
template <int kM, int kN>
__global__ void __launch_bounds__(256) attention_mask_tiles(const __grid_constant__ MaskTiles tiles) {
  begin_kernel();
  const int lane = threadIdx.x % 32;
  const int64_t index = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32,
                size = int64_t(tiles.rows) * tiles.columns;
  if (index >= tiles.count()) return;
  const int key = static_cast<int>(index % tiles.key_tiles) * kN;
  const int query = static_cast<int>(index / tiles.key_tiles % tiles.query_tiles) * kM;
  const uint8_t* const mask = tiles.mask + index / tiles.key_tiles / tiles.query_tiles * size;
  const int queries = min(tiles.rows - query, kM), keys = min(tiles.columns - key, kN);
  bool some = false, all = true;
  if (tiles.columns % 16 == 0 && reinterpret_cast<uintptr_t>(tiles.mask) % 16 == 0) {
    constexpr int kVectors = kN / 16;
    static_assert(kN % 16 == 0);
#pragma unroll 4
    for (int i = lane; i < queries * kVectors; i += 32) {
      if (i % kVectors * 16 >= keys) continue;
      const auto bytes = *reinterpret_cast<const uint4*>(mask + int64_t(query + i / kVectors) * tiles.columns + key +
                                                         i % kVectors * 16);
      some |= (bytes.x | bytes.y | bytes.z | bytes.w) != 0;
      all &= (bits_of_bytes(bytes.x) & bits_of_bytes(bytes.y) & bits_of_bytes(bytes.z) & bits_of_bytes(bytes.w)) == 15;
    }
  } else {
    for (int row = 0; row < queries; ++row)
      for (int i = lane; i < keys; i += 32) {
        const bool visible = mask[int64_t(query + row) * tiles.columns + key + i];
        some |= visible, all &= visible;
      }
  }
  some = __any_sync(0xffffffff, some), all = __all_sync(0xffffffff, all);
  if (lane == 0) tiles.tiles[index] = (some ? MaskTiles::kSome : 0) | (all ? MaskTiles::kAll : 0);
}

template <int kM, int kN>
Status find_mask_tiles(const MaskTiles& tiles, const Context& context) {
  constexpr int kWarps = 8;
  return launch(context, attention_mask_tiles<kM, kN>, Grid{(tiles.count() + kWarps - 1) / kWarps, 32 * kWarps}, tiles);
}

// The tiles of a range, without a mask.
struct AllTiles {
  __device__ Range visible() const { return range; }
  __device__ int before(int tile) const { return tile - 1; }
  __device__ int after(int tile) const { return tile + 1; }
  __device__ int count() const { return range.end - range.begin; }

  Range range;
};

// The tiles of a range that have a visible pair. Called by whole warps, which load 32 tiles at a time.
class VisibleTiles {
 public:
  VisibleTiles() = default;
  __device__ VisibleTiles(const uint8_t* first, int stride, Range range)
      : first_(first), stride_(stride), range_(range) {}

  // The range from the first such tile to the last.
  __device__ Range visible() { return {after(range_.begin - 1), before(range_.end) + 1}; }

  // The last such tile before `tile`, or the range's begin - 1.
  __device__ int before(int tile) {
    for (int at = tile - 1; at >= range_.begin; at = at / 32 * 32 - 1) {
      load_word(at / 32);
      if (const uint32_t rest = some_ << (31 - at % 32)) return at - __clz(rest);
    }
    return range_.begin - 1;
  }

  // The first such tile after `tile`, or the range's end.
  __device__ int after(int tile) {
    for (int at = tile + 1; at < range_.end; at = at / 32 * 32 + 32) {
      load_word(at / 32);
      if (const uint32_t rest = some_ >> (at % 32)) return at + __ffs(rest) - 1;
    }
    return range_.end;
  }

  __device__ int count() {
    int count = 0;
    for (int at = range_.begin; at < range_.end; at = at / 32 * 32 + 32) {
      load_word(at / 32);
      count += __popc(some_);
    }
    return count;
  }

  // True if the mask hides nothing of the tile that was found last.
  __device__ bool is_all_visible(int tile) const { return all_ >> (tile % 32) & 1; }

 private:
  __device__ void load_word(int word) {
    if (word == word_) return;
    word_ = word;
    const int tile = word * 32 + threadIdx.x % 32;
    uint8_t visible = 0;
    if (range_.has(tile)) visible = first_ ? first_[int64_t(tile) * stride_] : MaskTiles::kSome | MaskTiles::kAll;
    some_ = __ballot_sync(0xffffffff, visible & MaskTiles::kSome);
    all_ = __ballot_sync(0xffffffff, visible & MaskTiles::kAll);
  }

  const uint8_t* first_;  // null: there is no mask
  int stride_;
  Range range_;
  int word_ = -1;
  uint32_t some_, all_;
};

// Classified tiles of one head of one sequence.
class HeadTiles {
 public:
  HeadTiles() = default;
  __device__ HeadTiles(const MaskTiles& tiles, const Attention& call, int b, int head)
      : first_(call.has_mask ? tiles.first(call, b, head) : nullptr),
        query_stride_(tiles.query_stride()),
        key_stride_(tiles.key_stride()) {}

  // Tiles of keys in a range for a tile of queries, and tiles of queries for a tile of keys.
  __device__ VisibleTiles keys(int query_tile, Range range) const {
    return {first_ ? first_ + int64_t(query_tile) * query_stride_ : nullptr, key_stride_, range};
  }
  __device__ VisibleTiles queries(int key_tile, Range range) const {
    return {first_ ? first_ + key_tile * key_stride_ : nullptr, query_stride_, range};
  }

 private:
  const uint8_t* first_;  // null: there is no mask
  int query_stride_, key_stride_;
};

// HeadTiles without a mask.
struct AllHeadTiles {
  AllHeadTiles() = default;
  __device__ AllHeadTiles(const MaskTiles&, const Attention&, int, int) {}

  __device__ AllTiles keys(int, Range range) const { return {range}; }
  __device__ AllTiles queries(int, Range range) const { return {range}; }
};

// Bits in the forward: each lane of a quad has 32 of the kColumns keys of both of its rows.
template <int kColumns>
struct RowBits {
  uint32_t own[2];

  // Calls body(i, bit) for each value of an accumulator.
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

// Bits in the backward, for scores [keys, queries]: a lane has the 16 keys of its warp for every 32nd query, two
// queries per word.
template <int kQueries>
struct ColumnBits {
  static constexpr int kWords = kQueries / 64;
  uint32_t own[kWords] = {};

  // bits(query) returns the bits of the 16 keys. kAtOnce: 2 has both loads of a mask in flight, 1 saves registers.
  template <int kAtOnce, class Bits>
  __forceinline__ __device__ void find(Bits&& bits) {
#pragma unroll
    for (int word = 0; word < kWords; ++word)
#pragma unroll kAtOnce
      for (int half = 0; half < 2; ++half) own[word] |= bits(word * 64 + half * 32 + threadIdx.x % 32) << (half * 16);
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
