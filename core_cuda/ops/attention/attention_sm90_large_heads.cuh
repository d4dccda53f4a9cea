// Shared parts of attention of heads with more than 256 features for 16 bits on compute capability 9.x.
//
// Registers have no room for a result of 512 columns and a tile of scores. So attention consists of plain products, by
// two kernels: the first stores tiles of scores, rounded, in the workspace; the second multiplies them. No product is
// computed twice. Each kernel sums over slices of kDepth features or positions, which a producer warp copies into a
// ring in shared memory.
//
// The workspace has room for the tiles of a chunk: see ScoreChunks. Tiles have the layout of shared memory there, so
// that they are copied without tensor maps.
#pragma once

#include "core/cuda/sm90/bulk_copy.cuh"
#include "ops/attention/attention_sm80_backward.cuh"
#include "ops/attention/attention_sm80_forward.cuh"
#include "ops/attention/attention_sm90.cuh"

namespace fusedops::cuda::sm90 {

inline constexpr int kScoreTile = ScoreChunks::kTile, kDepth = 64;
inline constexpr int kConsumers = 2, kLargeHeadsThreads = kWarpgroup * (1 + kConsumers);

// Arguments of all kernels. Boxes of the tensors have kDepth positions.
template <class T>
struct LargeHeads {
  Attention call;
  Scores<T> score;
  CUtensorMap q, k, v, dy;
  ScoreChunks chunks;
  ScoreChunk chunk;
  const float* deltas;  // backward only
};

// A tile of scores. `row` is its row of tiles in the unit.
struct ScoreTile {
  int unit, row, key_tile;
  int b, head, key_head;
  int first_query, first_key;
};

// The tiles of a chunk.
template <class T>
struct ScoreTiles {
  __device__ explicit ScoreTiles(const LargeHeads<T>& heads)
      : call(heads.call), chunks(heads.chunks), chunk(heads.chunk), rows(chunk.rows.end - chunk.rows.begin) {}

  __device__ ScoreTile at(int unit, int row, int key_tile) const {
    const int64_t index = chunk.first_unit + unit;
    const int b = static_cast<int>(index / call.key_heads), key_head = static_cast<int>(index % call.key_heads);
    return {unit,
            row,
            key_tile,
            b,
            key_head * call.group + row % call.group,
            key_head,
            row / call.group * kScoreTile,
            key_tile * kScoreTile};
  }

  __device__ Sequence sequence(int unit) const { return call.sequence((chunk.first_unit + unit) / call.key_heads); }

  // Tiles of keys that a row of tiles sees.
  __device__ Range visible_keys(const Sequence& sequence, int row) const {
    const int first = row / call.group * kScoreTile;
    const Range keys = call.band.keys(sequence, {first, min(first + kScoreTile, sequence.queries)});
    return keys.is_empty() ? Range{0, 0} : Range{keys.begin / kScoreTile, (keys.end + kScoreTile - 1) / kScoreTile};
  }

  // Rows of tiles of the chunk that see a tile of keys.
  __device__ Range visible_rows(const Sequence& sequence, int key_tile) const {
    const Range keys{key_tile * kScoreTile, min((key_tile + 1) * kScoreTile, sequence.valid_keys)};
    const Range queries = keys.is_empty() ? Range{0, 0} : call.band.queries(sequence, keys);
    const Range found{max(queries.begin / kScoreTile * call.group, chunk.rows.begin),
                      min((queries.end + kScoreTile - 1) / kScoreTile * call.group, chunk.rows.end)};
    return queries.is_empty() || found.is_empty() ? Range{0, 0} : found;
  }

  // The elements of a tile in an array of the chunk's tiles.
  __device__ T* elements(void* tiles, const ScoreTile& tile) const {
    return static_cast<T*>(tiles) + index(tile) * kScoreTile * kScoreTile;
  }

  // The maxima of the rows of a tile, then their sums.
  __device__ float* statistics(const ScoreTile& tile) const { return chunks.statistics + index(tile) * 2 * kScoreTile; }

  __device__ int64_t index(const ScoreTile& tile) const {
    return int64_t(tile.unit * rows + tile.row - chunk.rows.begin) * chunks.key_tiles + tile.key_tile;
  }

  // Calls body(tile) for this block's share of the visible tiles. Called by whole warps.
  template <class Body>
  __forceinline__ __device__ void for_each_visible(Body&& body) const {
    const int lane = threadIdx.x % 32, count = chunk.units * rows;
    int number = blockIdx.x;  // of this block's next tile, less the tiles of the rows before `first`
#pragma unroll 1
    for (int first = 0; first < count;) {
      Range keys{0, 0};
      if (first + lane < count)
        keys = visible_keys(sequence((first + lane) / rows), (first + lane) % rows + chunk.rows.begin);
      int through = keys.end - keys.begin;  // inclusive prefix sum over lanes
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int before = __shfl_up_sync(~0u, through, distance);
        if (lane >= distance) through += before;
      }
      const unsigned behind = __ballot_sync(~0u, number < through);
      if (behind) {
        const int found = __ffs(behind) - 1, key_tile = __shfl_sync(~0u, keys.end - through, found) + number;
        body(at((first + found) / rows, (first + found) % rows + chunk.rows.begin, key_tile));
        number += gridDim.x;
      } else {
        number -= __shfl_sync(~0u, through, 31);
        first += 32;
      }
    }
  }

  const Attention& call;
  const ScoreChunks& chunks;
  const ScoreChunk& chunk;
  const int rows;
};

// A ring of slices of kDepth features of the queries and keys of a tile.
template <class T, int kStages>
struct FeatureRing {
  using Slice = SwizzledTile<kScoreTile, kDepth>;
  using State = RingState<kStages>;

  __device__ void init() { ring.init(kConsumers); }

  // Copies all slices. Called by the producer warp.
  __forceinline__ __device__ void load(State& state, const ScoreTile& tile, const CUtensorMap& of_queries,
                                       const CUtensorMap& of_keys, int features) {
    const bool is_leader = threadIdx.x % 32 == 0;
#pragma unroll 1
    for (int feature = 0; feature < features; feature += kDepth, ++state) {
      uint64_t* const barrier = ring.acquire(state, is_leader, 2 * Slice::kSize * sizeof(T));
      if (!is_leader) continue;
#pragma unroll
      for (int i = 0; i < kScoreTile; i += kDepth) {
        const int place = i * Slice::kPanel;
        cute::SM90_TMA_LOAD_4D::copy(&of_queries, barrier, kCacheHint, queries[state.stage] + place, feature,
                                     tile.first_query + i, tile.head, tile.b);
        cute::SM90_TMA_LOAD_4D::copy(&of_keys, barrier, kCacheHint, keys[state.stage] + place, feature,
                                     tile.first_key + i, tile.key_head, tile.b);
      }
    }
  }

  // sums = products over all features. The rows of a warpgroup are 64 keys if kRowsAreKeys, otherwise 64 queries.
  template <bool kRowsAreKeys>
  __forceinline__ __device__ void multiply(State& state, int features, int warpgroup, float (&sums)[kScoreTile / 2]) {
    const auto left = Slice::rows(kRowsAreKeys ? keys : queries, warpgroup * 64);
    const auto right = Slice::rows(kRowsAreKeys ? queries : keys);
    const int slices = (features + kDepth - 1) / kDepth;
    accumulate<T>(ring, state, slices, sums, [&](int stage, int) {
      return std::pair{left + stage * Slice::kOffset, right + stage * Slice::kOffset};
    });
  }

  alignas(1024) T queries[kStages][Slice::kSize];
  alignas(1024) T keys[kStages][Slice::kSize];
  Ring<kStages> ring;
};

// A ring of slices of kDepth positions: of a tile of scores, and of kColumns columns of a right operand.
template <class T, int kColumns>
struct PositionRing {
  static constexpr int kStages = kColumns == 256 ? 4 : 5, kLeftSize = kScoreTile * kDepth;
  using Right = SwizzledTile<kDepth, kColumns>;
  using State = RingState<kStages>;
  static constexpr uint32_t kBytes = (kLeftSize + Right::kSize) * sizeof(T);

  __device__ void init() { ring.init(kConsumers); }

  // The result of a block passes through the memory of right operands.
  using Result = SwizzledTile<kScoreTile, kColumns>;
  static_assert(Result::kSize <= kStages * Right::kSize);

  // Copies slice `i` of a tile of scores, and of rows from `position` on. If `is_transposed`, positions are the rows of
  // the tile, otherwise its columns. Called by one thread.
  __forceinline__ __device__ void load(State& state, const T* tile, int i, bool is_transposed, const CUtensorMap& rows,
                                       int column, int position, int head, int b) {
    uint64_t* const barrier = ring.acquire(state, true, kBytes);
    T* const to = left[state.stage];
    if (is_transposed) {  // kDepth rows of both panels
      constexpr int kHalf = kLeftSize / 2;
      load_bulk(to, tile + i * kHalf, kHalf * sizeof(T), barrier);
      load_bulk(to + kHalf, tile + kScoreTile * kDepth + i * kHalf, kHalf * sizeof(T), barrier);
    } else {  // a panel
      load_bulk(to, tile + i * kLeftSize, kLeftSize * sizeof(T), barrier);
    }
#pragma unroll
    for (int panel = 0; panel < Right::kPanels; ++panel)
      cute::SM90_TMA_LOAD_4D::copy(&rows, barrier, kCacheHint,
                                   right[state.stage] + panel * (Right::kSize / Right::kPanels),
                                   column + panel * Right::kPanel, position + i * kDepth, head, b);
    ++state;
  }

  static __forceinline__ __device__ void load_bulk(T* to, const T* from, uint32_t bytes, uint64_t* barrier) {
    cute::SM90_BULK_COPY_G2S::copy(from, barrier, to, bytes);
  }

  // Zeroes keys from the `valid`-th on of a stage: behind the last valid one they may be NaN. Called by a warpgroup.
  __forceinline__ __device__ void clear_invalid(int stage, int valid) {
    if (valid >= kDepth) return;
    clear_rows<Right>(right[stage], max(valid, 0), threadIdx.x % kWarpgroup, kWarpgroup);
    cutlass::arch::NamedBarrier::sync(kWarpgroup, threadIdx.x / kWarpgroup);
  }

  alignas(1024) T right[kStages][Right::kSize];
  alignas(1024) T left[kStages][kLeftSize];
  Ring<kStages> ring;
};

// sums = the products of `steps` stages, at least one. operands(stage, step) returns the operands of a stage.
template <class T, int kStages, int kValues, class Operands>
__forceinline__ __device__ void accumulate(Ring<kStages>& ring, RingState<kStages>& state, int steps,
                                           float (&sums)[kValues], Operands&& operands) {
  fence_registers(sums);
  int last = state.stage;
#pragma unroll 1
  for (int i = 0; i < steps; ++i, ++state) {
    ring.wait(state);
    const auto [left, right] = operands(state.stage, i);
    cute::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < left.kKBlocks; ++k)
      multiply_k_block<T, left.kMajor, right.kMajor>(left.at(k), right.at(k), sums, i > 0 || k > 0);
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<1>();  // the previous stage has been read
    if (i > 0) ring.release(last);
    last = state.stage;
  }
  wait_for<0>(sums);
  ring.release(last);
}

// Stores a warpgroup's 64 rows of a tile of scores from shared memory to the workspace. Called by one thread.
template <class T>
__device__ void store_score_rows(T* to, const T* from, int warpgroup) {
  using Tile = SwizzledTile<kScoreTile, kScoreTile>;
#pragma unroll
  for (int panel = 0; panel < Tile::kPanels; ++panel) {
    const int first = (panel * kScoreTile + warpgroup * 64) * Tile::kPanel;
    store_bulk(reinterpret_cast<float*>(to + first), reinterpret_cast<const float*>(from + first),
               64 * Tile::kPanel * sizeof(T));
  }
}

// A block of a kernel: Kernel::produce by the producer warp, Kernel::consume by the consumer warpgroups.
template <class Kernel, class T>
__forceinline__ __device__ void run_large_heads(const LargeHeads<T>& heads, typename Kernel::Shared& shared,
                                                const auto&... work) {
  const bool is_producer = cutlass::canonical_warp_group_idx() == 0;
  if (threadIdx.x == 0) shared.ring.init();
  cutlass::arch::fence_barrier_init();
  __syncthreads();
  if (is_producer) {
    cutlass::arch::warpgroup_reg_dealloc<24>();
    if (threadIdx.x < 32) Kernel::produce(heads, shared, work...);
  } else {
    cutlass::arch::warpgroup_reg_alloc<240>();
    Kernel::consume(heads, shared, work...);
  }
}

// The first kernel: Kernel stores tiles of scores.
template <template <class> class Kernel, class T>
__global__ void __launch_bounds__(kLargeHeadsThreads, 1)
    attention_large_heads_tiles(const __grid_constant__ LargeHeads<T> heads) {
  extern __shared__ __align__(1024) char memory[];
  begin_kernel();
  run_large_heads<Kernel<T>>(heads, *reinterpret_cast<typename Kernel<T>::Shared*>(memory));
}

// The second kernel: a block of Kernel has a tile of a result, of as many columns as suit its number of features.
template <template <class, int> class Kernel, class T>
__global__ void __launch_bounds__(kLargeHeadsThreads, 1)
    attention_large_heads_products(const __grid_constant__ LargeHeads<T> heads) {
  extern __shared__ __align__(1024) char memory[];
  begin_kernel();
  typename Kernel<T, 256>::Work work;
  if (!work.find(heads)) return;
  const auto run = [&](auto columns) {
    using Block = Kernel<T, columns>;
    run_large_heads<Block>(heads, *reinterpret_cast<typename Block::Shared*>(memory), work);
  };
  if (work.columns == 256)
    run(std::integral_constant<int, 256>());
  else
    run(std::integral_constant<int, 192>());
}

// Launches both kernels for each chunk. blocks(units, rows) is the number of blocks of the second one.
template <template <class> class Tiles, template <class, int> class Products, class T, class Blocks>
Status launch_large_heads(LargeHeads<T>& heads, const Context& context, Blocks&& blocks) {
  using Slice = SwizzledTile<kScoreTile, kDepth>;
  FUSEDOPS_TRY((describe_inputs<Slice, Slice>(heads.call, heads.call.sequences, kDepth, kDepth, &heads)));
  const int64_t multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const ScoreChunks& chunks = heads.chunks;
  constexpr int kTilesBytes = sizeof(typename Tiles<T>::Shared);
  constexpr int kProductsBytes =
      std::max(sizeof(typename Products<T, 256>::Shared), sizeof(typename Products<T, 192>::Shared));
  for (int64_t unit = 0; unit < chunks.units; unit += chunks.units_of_chunk)
    for (int row = 0; row < chunks.rows; row += chunks.rows_of_chunk) {
      const auto units = static_cast<int>(std::min(chunks.units - unit, chunks.units_of_chunk));
      const int rows = std::min(chunks.rows - row, chunks.rows_of_chunk);
      heads.chunk = {unit, units, {row, row + rows}};
      const int64_t tiles = int64_t(units) * rows * chunks.key_tiles;
      FUSEDOPS_TRY(launch(context, attention_large_heads_tiles<Tiles, T>,
                          Grid{std::min(tiles, multiprocessors), kLargeHeadsThreads, kTilesBytes}, heads));
      FUSEDOPS_TRY(launch(context, attention_large_heads_products<Products, T>,
                          Grid{blocks(units, rows), kLargeHeadsThreads, kProductsBytes}, heads));
    }
  return {};
}

}  // namespace fusedops::cuda::sm90
