// Layouts of the workspace of the CUDA kernels for attention.
#pragma once

#include <algorithm>

#include "core/common/numeric.h"
#include "ops/attention/attention.h"

namespace fusedops::cuda {

// Sanitized offsets of packed sequences, at the start of the workspace: see sanitize_offsets().
struct PackedOffsets {
  PackedOffsets(const Attention& call, void* workspace)
      : count(call.offsets_q ? call.sequences + 1 : 0),
        q(static_cast<int32_t*>(workspace)),
        k(q + count),
        taken(k + count),
        size(count ? ((2 * count + 1) * sizeof(int32_t) + 127) / 128 * 128 : 0) {}

  int64_t count;
  int32_t *q, *k;
  int32_t* taken;  // a number, at first 0: the work tiles that blocks of the forward have taken
  size_t size;     // bytes of all
};

// The simt and sm80 backward. Rows are those of Attention::row. dq is summed in the workspace only in
// 16 bits and with at most 256 features.
struct BackwardSums {
  BackwardSums(const Attention& call, void* workspace) : rows(call.rows()), pitch(pitch_of(call)) {
    const auto take = [&](size_t bytes) {
      void* const taken = static_cast<char*>(workspace) + size;
      size += (bytes + 127) / 128 * 128;
      return taken;
    };
    delta = take(rows * size_of(compute_dtype(call.dtype)));
    if (size_of(call.dtype) != 2 || call.has_large_heads()) return;
    const int64_t dq_rows = call.heads * tiles_of_head(call) * kTile * (call.offsets_q ? 1 : call.sequences);
    dq = static_cast<float*>(take(dq_rows * pitch * sizeof(float)));
    semaphore_count = 1 + dq_rows / kMinTile * kMaxParts;
    semaphores = static_cast<int*>(take(semaphore_count * sizeof(int)));
  }

  static constexpr int kTile = 64;                    // queries: each sequence has whole tiles of dq
  static constexpr int kMinTile = 16, kMaxParts = 2;  // queries; parts of the columns of dq

  // Features of q and v, padded to the tile width of the kernels.
  static int pitch_of(const Attention& call) {
    const int dim = call.dim > call.dim_v ? call.dim : call.dim_v;
    return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
  }

  // The row in dq of a sequence's first query. Sequences never share a tile, since their offsets are monotone.
  FUSEDOPS_HD static int64_t dq_row(const Attention& call, int64_t b, const Sequence& sequence, int head) {
    const int64_t tile = call.offsets_q ? head * tiles_of_head(call) + sequence.first_query / kTile + b
                                        : (b * call.heads + head) * tiles_of_head(call);
    return tile * kTile;
  }

  int64_t rows, pitch;
  size_t size = 0;            // bytes of all
  void* delta;                // [rows], the sum of dy * y less dlse, in the compute type
  float* dq = nullptr;        // the sum over keys of ds k, see DqFragment; null without such sums
  int* semaphores = nullptr;  // key tiles already added to each dq tile; semaphores[0] is the block counter
  int64_t semaphore_count = 0;

 private:
  FUSEDOPS_HD static int64_t tiles_of_head(const Attention& call) {
    return call.offsets_q ? call.packed_queries / kTile + call.sequences : (call.queries + kTile - 1) / kTile;
  }
};

// The backward on compute capability 9.x. A slot is a tile of queries of one head; each packed sequence has room for
// its last tile.
struct BackwardSlots {
  explicit BackwardSlots(const Attention& call)
      : features(((call.dim > call.dim_v ? call.dim : call.dim_v) + 63) / 64 * 64),
        tile(features == 64 ? 128 : 64),
        key_tile(features <= 128 ? 128 : 64),
        count(call.heads * tiles(call, call.queries, call.packed_queries, tile)),
        shared_count(call.group > 1 ? call.key_heads * tiles(call, call.keys, call.packed_keys, key_tile) : 0) {}

  // dq in float32, lse and delta of each row, and the dq semaphores. If heads share keys, also dk and dv in float32 and
  // their semaphores.
  size_t bytes() const {
    return count * (tile * (features + 2) * sizeof(float) + sizeof(int)) +
           shared_count * (2 * key_tile * features * sizeof(float) + sizeof(int));
  }

  int features, tile, key_tile;
  int64_t count, shared_count;

 private:
  static int64_t tiles(const Attention& call, int64_t positions, int64_t packed, int tile) {
    return call.offsets_q ? packed / tile + call.sequences : call.sequences * ((positions + tile - 1) / tile);
  }
};

// Chunks of the tiles of scores of large heads on compute capability 9.x. A unit is a key head of a sequence. It has a
// row of tiles for each tile of queries of each head that shares the keys: those of the first queries of all heads,
// then those of the next ones. A chunk has all rows of several units, or several rows of one.
struct ScoreChunk {
  int64_t first_unit;
  int units;
  Range rows;
};

struct ScoreChunks {
  static constexpr int kTile = 128;          // queries and keys
  static constexpr int kSums = kTile * 256;  // of a tile of a gradient

  // Columns of a tile of a result, so that few are wasted, and the number of its tiles.
  FUSEDOPS_HD static int columns(int features) {
    return (features + 191) / 192 * 192 < (features + 255) / 256 * 256 ? 192 : 256;
  }
  FUSEDOPS_HD static int parts(int features) { return (features + columns(features) - 1) / columns(features); }

  ScoreChunks(const Attention& call, bool is_backward, void* workspace)
      : units(call.sequences * call.key_heads),
        rows((call.queries + kTile - 1) / kTile * call.group),
        key_tiles((call.keys + kTile - 1) / kTile) {
    // In the forward, four units of 4096 positions fit. Blocks of three would fill a GPU one and a half times.
    const int64_t most_bytes = int64_t(is_backward ? 128 : 144) << 20;
    constexpr int64_t kTileBytes = kTile * kTile * sizeof(uint16_t), kStatisticsBytes = 2 * kTile * sizeof(float);
    const int64_t of_row = key_tiles * (is_backward ? 2 * kTileBytes : kTileBytes + kStatisticsBytes);
    const int64_t of_unit = rows * of_row, splits = (of_unit + most_bytes - 1) / most_bytes;
    rows_of_chunk = splits > 1 ? static_cast<int>(std::max<int64_t>((rows + splits - 1) / splits, 1)) : rows;
    const int64_t most_units = std::max<int64_t>(most_bytes / of_unit, 1),
                  count = (units + most_units - 1) / most_units;
    units_of_chunk = (units + count - 1) / count;  // chunks of similar size
    const int64_t tiles = units_of_chunk * rows_of_chunk * key_tiles;
    p = workspace;
    ds = static_cast<char*>(workspace) + tiles * kTileBytes;
    statistics = static_cast<float*>(ds);
    sums = reinterpret_cast<float*>(static_cast<char*>(ds) + tiles * kTileBytes);
    size = tiles * (of_row / key_tiles);
    if (is_backward && rows_of_chunk < rows)
      size += int64_t(key_tiles) * (parts(call.dim) + parts(call.dim_v)) * kSums * sizeof(float);
  }

  int64_t units, units_of_chunk;
  int rows, rows_of_chunk, key_tiles;  // rows: of a unit
  void *p, *ds;                        // [units_of_chunk, rows_of_chunk, key_tiles] tiles
  float* statistics;                   // of the rows of each tile of p: forward only
  float* sums;                         // of dk and dv of a unit that has several chunks: backward only
  size_t size;                         // bytes of all
};

// Classified tiles of a mask on compute capability 9.x: a byte per tile of queries and keys. Sequences and heads that
// share a mask share its tiles; so do all queries, or all keys, of a broadcast mask.
struct MaskTiles {
  static constexpr uint8_t kSome = 1, kAll = 2;  // bits: some pair, all pairs are visible

  MaskTiles() = default;
  MaskTiles(const Attention& call, int tile_queries, int tile_keys, void* memory)
      : mask(call.mask.row(0)),
        rows(call.queries > 1 && call.mask.row(1) != mask ? call.queries : 1),
        columns(call.mask.has_columns() ? call.keys : 1),
        query_tiles((rows + tile_queries - 1) / tile_queries),
        key_tiles((columns + tile_keys - 1) / tile_keys),
        masks(columns ? call.mask.elements() / (int64_t(rows) * columns) : 0),
        tiles(static_cast<uint8_t*>(memory)) {}

  FUSEDOPS_HD int64_t count() const { return masks * query_tiles * key_tiles; }

  // First tile of a head of a sequence, and strides to the next tiles of queries and keys.
  FUSEDOPS_HD const uint8_t* first(const Attention& call, int64_t b, int head) const {
    const int64_t offset = call.mask.row((b * call.heads + head) * call.queries) - mask;
    return tiles + offset / (int64_t(rows) * columns) * query_tiles * key_tiles;
  }
  FUSEDOPS_HD int query_stride() const { return query_tiles > 1 ? key_tiles : 0; }
  FUSEDOPS_HD int key_stride() const { return key_tiles > 1 ? 1 : 0; }

  const uint8_t* mask = nullptr;
  int rows = 0, columns = 0;  // of the mask of one head
  int query_tiles = 0, key_tiles = 0;
  int64_t masks = 0;  // distinct masks of (sequence, head)
  uint8_t* tiles = nullptr;
};

// The split-KV forward: each split has an unnormalized row of y and the softmax state of the row.
struct Splits {
  struct State {
    float max, sum;  // sum of 2^(factor * (score - max)); negative if no key is visible
  };

  static constexpr int kMaxSplits = 128;

  // Keys per split: the blocks of one sequence fill a large GPU, with one or three per multiprocessor, but a block has
  // enough keys to amortize its start. Depends on the shape of a sequence alone, so that its bits do not depend on the
  // batch.
  static int keys_of(const Attention& call) {
    constexpr int kStep = 64, kLeast = 128;
    const int blocks = call.keys >= kManyKeys ? 128 : 384;
    const int most = std::clamp(blocks / std::max(call.key_heads, 1), 8, kMaxSplits);
    const int per_split = (call.keys + most - 1) / most;
    return per_split <= kLeast ? kLeast : (per_split + kStep - 1) / kStep * kStep;
  }
  static constexpr int kManyKeys = 4096;

  Splits(const Attention& call, void* workspace)
      : are_long(call.keys >= kManyKeys),
        keys(keys_of(call)),
        count((call.keys + keys - 1) / keys),
        pitch((call.dim_v + 7) / 8 * 8),
        y(static_cast<float*>(workspace)),
        states(reinterpret_cast<State*>(y + call.rows() * count * pitch)),
        size(call.rows() * count * (pitch * sizeof(float) + sizeof(State))) {}

  bool are_long;
  int keys, count, pitch;
  float* y;       // [rows, count, pitch]
  State* states;  // [rows, count]
  size_t size;    // bytes of all
};

// Up to this many queries, tiles of 128 queries would be mostly empty.
inline constexpr int kMaxDecodeQueries = 32;

// True if few queries see many keys, as in decoding. Not with dropout or large heads, nor for packed sequences, whose
// lengths are unknown here.
inline bool is_split_kv(const Attention& call) {
  constexpr int kMaxRows = 64, kMinKeys = 256;
  return size_of(call.dtype) == 2 && !call.has_large_heads() && !call.offsets_q && !call.dropout.seed &&
         call.queries <= kMaxDecodeQueries && int64_t(call.queries) * call.group <= kMaxRows && call.keys >= kMinKeys;
}

// Sized for the smallest tiles of all kernels. An empty mask has no tiles.
inline size_t mask_bytes(const Attention& call) {
  constexpr int kMinQueries = 64, kMinKeys = 80;
  const bool has_tiles = call.has_mask && size_of(call.dtype) == 2 && call.rows() > 0 && call.keys > 0;
  return has_tiles ? MaskTiles(call, kMinQueries, kMinKeys, nullptr).count() : 0;
}

// True if the kernels for large heads may store tiles of scores. Lengths of packed sequences are unknown here, and few
// queries would leave tiles mostly empty.
inline bool has_score_chunks(const Attention& call) {
  return size_of(call.dtype) == 2 && call.has_large_heads() && call.dim > 0 && call.dim_v > 0 && !call.offsets_q &&
         call.queries > kMaxDecodeQueries && call.has_scores();
}

// Bytes of workspace of the operators on a GPU.
inline size_t attention_workspace(const Attention& call) {
  if (has_score_chunks(call)) return ScoreChunks(call, /*is_backward=*/false, nullptr).size;
  return PackedOffsets(call, nullptr).size + (is_split_kv(call) ? Splits(call, nullptr).size : mask_bytes(call));
}
inline size_t attention_backward_workspace(const Attention& call) {
  const size_t of_sums = BackwardSums(call, nullptr).size;
  if (has_score_chunks(call)) return of_sums + ScoreChunks(call, /*is_backward=*/true, nullptr).size;
  const size_t of_sm90 = call.has_large_heads() ? 0 : BackwardSlots(call).bytes() + mask_bytes(call);
  return PackedOffsets(call, nullptr).size + std::max(of_sums, of_sm90);
}

}  // namespace fusedops::cuda
