// Attention of heads with more than 256 features with mma, compute capability 8.0 and later.
//
// A block owns 64 queries or keys and loops over tiles of 128 positions of the other side. It sums up to 512 columns of
// one result, y, dq, dk or dv; other blocks have the remaining columns. No tile has all features: products q k^T and
// dy v^T are summed over slices of 64 features, the result over slices of 16 positions. All slices pass through one
// ring in shared memory, so that copies overlap with the softmax, too. Slices of the block's own side stay in shared
// memory if there is room.
//
// The blocks of each gradient compute scores again: 8 products instead of 5. In exchange every sum has one owner and
// one order, without semaphores. Limit: the tensor cores, and the L2 cache where own slices are copied again.
#pragma once

#include "core/cuda/launch.cuh"
#include "ops/attention/attention_sm80_backward.cuh"
#include "ops/attention/attention_sm80_forward.cuh"

namespace fusedops::cuda {

// Own positions are rows of the result. A warp has 32 of them, and 32 other positions in its scores.
struct SlicedTile {
  static constexpr int kOwn = 64, kOther = 128;               // positions
  static constexpr int kFeatures = 64, kSlicePositions = 16;  // of a slice of scores, and of the result
  static constexpr int kOut = 512, kWarpOut = 128;            // columns of the result, of a block and of a warp
  static constexpr int kWarpN = 32, kWarpsOfOther = kOther / kWarpN, kWarps = kOwn / kWarpN * kWarpsOfOther;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kPitch = kPitchOf<kFeatures>, kOutPitch = kPitchOf<kOut>;
  static_assert(kWarpOut * kWarpsOfOther == kOut);

  // Elements in shared memory. The ring has three slices of the other side, or two of both sides.
  static constexpr int kOwnSlice = kOwn * kPitch, kOtherSlice = kOther * kPitch;
  static constexpr int kRing = 3 * kOtherSlice, kScores = kOther * kPitchOf<kOwn>;
  static_assert(kRing == 2 * (kOtherSlice + kOwnSlice) && kSlicePositions * kOutPitch <= kOtherSlice);
  static_assert(kOwn * kPitchOf<kOther> <= kScores);

  // Bytes without own slices that stay. Each warp stores its result through its part of the ring and of the scores.
  static constexpr int kResult = kWarpN * kPitchOf<kWarpOut>;
  static constexpr int kSharedBytes = (kRing + kScores) * 2 + kOther * (2 * sizeof(float) + sizeof(const uint8_t*));
  static_assert(kWarps * kResult <= kRing + kScores);

  // For mask_scores(): scores of a warp.
  static constexpr int kRowTiles = kWarpN / 16, kN = kWarpN;
};

using SlicedScores = Fragments<SlicedTile::kRowTiles, SlicedTile::kN / 8>;
using SlicedSums = Fragments<SlicedTile::kRowTiles, SlicedTile::kWarpOut / 8>;

enum class SlicedResult { y, dq, dk_and_dv };

struct SlicedOptions {
  bool keeps_own;  // true if own slices stay in shared memory
  bool aligned, out_aligned;
};

// The work of a block.
template <SlicedResult kResult>
struct SlicedWork {
  using Tile = SlicedTile;
  static constexpr bool kOwnsKeys = kResult == SlicedResult::dk_and_dv;

  __device__ explicit SlicedWork(const Attention& call) {
    const int of_first = parts_of(kResult == SlicedResult::y ? call.dim_v : call.dim, Tile::kOut);
    const int parts = kOwnsKeys ? of_first + parts_of(call.dim_v, Tile::kOut) : of_first;
    int part = static_cast<int>(blockIdx.x) % parts;
    is_dv = kOwnsKeys && part >= of_first;
    if (is_dv) part -= of_first;
    first_column = part * Tile::kOut;
    columns = kResult == SlicedResult::y || is_dv ? call.dim_v : call.dim;
    const Side side = kOwnsKeys ? Side::keys : Side::queries;
    const HeadTile tile = find_tile(call, side, blockIdx.x / parts, gridDim.x / parts, Tile::kOwn);
    b = uniform(static_cast<int>(tile.sequence)), head = uniform(tile.head);
    if (b < 0) return;
    batch = static_cast<int>(call.batch_index(b));
    sequence = call.sequence(b);
    sequence = {uniform(sequence.first_query), uniform(sequence.first_key),  uniform(sequence.queries),
                uniform(sequence.keys),        uniform(sequence.valid_keys), uniform(sequence.shift)};
    const int first = uniform(tile.tile) * Tile::kOwn;
    own = {first, min(first + Tile::kOwn, kOwnsKeys ? sequence.valid_keys : sequence.queries)};
    other = own.is_empty() ? Range{0, 0} : kOwnsKeys ? call.band.queries(sequence, own) : call.band.keys(sequence, own);
    heads = kOwnsKeys ? Range{head * call.group, (head + 1) * call.group}
                      : Range{call.key_head(head), call.key_head(head) + 1};
    if (other.is_empty()) heads.end = heads.begin;
  }

  // Calls body(head, first position) for each tile of the other side.
  template <class Body>
  __device__ void each_tile(Body body) const {
#pragma unroll 1
    for (int of_other = heads.begin; of_other < heads.end; ++of_other)
#pragma unroll 1
      for (int first = first_tile(); first < other.end; first += Tile::kOther) body(of_other, first);
  }
  __device__ int first_tile() const { return other.begin / Tile::kOther * Tile::kOther; }

  // The number of slices of the result in a tile of the other side.
  __device__ int result_slices(int first) const {
    return parts_of(min(Tile::kOther, other.end - first), Tile::kSlicePositions);
  }

  bool is_dv;
  int first_column, columns;  // of the result: those of this block, and all
  int b, batch;               // b is -1: none
  Sequence sequence;
  int head;                 // of the own side
  Range own, other, heads;  // heads: of the other side
};

// The slices that a block reads, in order: for each tile of the other side, slices of the features of q and k, then of
// dy and v for dq and dk, then slices of positions.
template <class T, SlicedResult kResult>
class SliceRing {
 public:
  using Tile = SlicedTile;
  using Work = SlicedWork<kResult>;

  __device__ SliceRing(const Attention& call, const Work& work, const SlicedOptions& options, T* ring, T* own_slices)
      : call_(call),
        work_(work),
        options_(options),
        ring_(ring),
        own_slices_(own_slices),
        score_slices(parts_of(call.dim, Tile::kFeatures)),
        dp_slices(kResult == SlicedResult::y || work.is_dv ? 0 : parts_of(call.dim_v, Tile::kFeatures)),
        head_(work.heads.begin),
        first_(work.first_tile()) {
    load();
    if (options_.keeps_own) load();
  }

  // The next slice of the other side, until the following call. All threads call it, as often as there are slices.
  __device__ const T* next() {
    if (options_.keeps_own)
      wait_for_copies<1>();
    else
      wait_for_copies<0>();
    __syncthreads();  // the slice has arrived, and the previous one has been read
    load();
    const T* const slice = ring_ + reading_ * slot_size();
    reading_ = after(reading_);
    return slice;
  }

  // Adds products over the features of q and k, or of v and dy. Rows are positions of the own side, but keys for dq.
  __device__ void add_scores(SlicedScores& scores, bool is_dp, int own, int other) {
    constexpr bool kRowsAreOwn = kResult != SlicedResult::dq;
    using Rows = AlongK<Tile::kPitch>;
    const int begin = is_dp ? score_slices : 0, end = is_dp ? score_slices + dp_slices : score_slices;
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
      const T* const slice = next();
      const T* const of_other = slice + other * Tile::kPitch;
      const T* const of_own = own_slice(slice, i) + own * Tile::kPitch;
      multiply<Tile::kFeatures, Rows, Rows>(scores, kRowsAreOwn ? of_own : of_other, kRowsAreOwn ? of_other : of_own);
    }
  }

 private:
  __device__ int slots() const { return options_.keeps_own ? 3 : 2; }
  __device__ int slot_size() const { return Tile::kRing / slots(); }
  __device__ int after(int slot) const { return slot + 1 == slots() ? 0 : slot + 1; }

  // Place of the own slice beside a slice of the other side.
  template <class Slice>
  __device__ Slice* own_slice(Slice* other, int i) const {
    return options_.keeps_own ? own_slices_ + i * Tile::kOwnSlice : other + Tile::kOtherSlice;
  }

  template <int kWidth, int kRows>
  __device__ void copy(const HeadRows& rows, int64_t position, int head, int column, int count, int width,
                       T* to) const {
    RowCopy<T, kWidth, Tile::kThreads>(rows.row<const T>(work_.batch, position, head) + column, rows.position)
        .template start<kRows>(to, rows.position, count, width - column, options_.aligned);
  }

  // Starts to copy the next slice, if there is one.
  __device__ void load() {
    constexpr bool kOwnsKeys = Work::kOwnsKeys;
    if (head_ < work_.heads.end) {
      T* const slot = ring_ + writing_ * slot_size();
      const int of_result = step_ - score_slices - dp_slices;
      const int64_t first_own = kOwnsKeys ? work_.sequence.first_key : work_.sequence.first_query;
      const int64_t first_other = kOwnsKeys ? work_.sequence.first_query : work_.sequence.first_key;
      if (of_result < 0) {
        const bool is_dp = step_ >= score_slices;
        const int feature = (is_dp ? step_ - score_slices : step_) * Tile::kFeatures;
        const int width = is_dp ? call_.dim_v : call_.dim;
        const HeadRows of_queries = is_dp ? call_.dy : call_.q, of_keys = is_dp ? call_.v : call_.k;
        copy<Tile::kFeatures, Tile::kOther>(kOwnsKeys ? of_queries : of_keys, first_other + first_, head_, feature,
                                            work_.other.end - first_, width, slot);
        if (is_first_ || !options_.keeps_own)
          copy<Tile::kFeatures, Tile::kOwn>(kOwnsKeys ? of_keys : of_queries, first_own + work_.own.begin, work_.head,
                                            feature, work_.own.end - work_.own.begin, width, own_slice(slot, step_));
      } else {
        const HeadRows rows = kResult == SlicedResult::y    ? call_.v
                              : kResult == SlicedResult::dq ? call_.k
                              : work_.is_dv                 ? call_.dy
                                                            : call_.q;
        const int position = first_ + of_result * Tile::kSlicePositions;
        copy<Tile::kOut, Tile::kSlicePositions>(rows, first_other + position, head_, work_.first_column,
                                                work_.other.end - position, work_.columns, slot);
      }
      advance();
    }
    commit_copies();
    writing_ = after(writing_);
  }

  __device__ void advance() {
    if (++step_ < score_slices + dp_slices + work_.result_slices(first_)) return;
    step_ = 0, is_first_ = false, first_ += Tile::kOther;
    if (first_ >= work_.other.end) first_ = work_.first_tile(), ++head_;
  }

  const Attention& call_;
  const Work& work_;
  const SlicedOptions& options_;
  T *const ring_, *const own_slices_;
  const int score_slices, dp_slices;
  int head_, first_, step_ = 0;  // of the next slice to copy
  bool is_first_ = true;         // true in the first tile of the other side
  int reading_ = 0, writing_ = 0;
};

// Shared memory of a block, and a warp's places in it.
template <class T, SlicedResult kResult>
struct SlicedMemory {
  using Tile = SlicedTile;

  // Layout of p or ds, by position of the own and of the other side.
  static constexpr bool kRowsAreOwn = kResult != SlicedResult::dq;
  static constexpr int kScorePitch = kRowsAreOwn ? kPitchOf<Tile::kOther> : kPitchOf<Tile::kOwn>;
  using ScoreTile = std::conditional_t<kRowsAreOwn, AlongK<kScorePitch>, AlongRows<kScorePitch>>;

  __device__ explicit SlicedMemory(int4* shared)
      : ring(reinterpret_cast<T*>(shared)),
        scores(ring + Tile::kRing),
        statistics(reinterpret_cast<float*>(scores + Tile::kScores)),
        mask_rows(reinterpret_cast<const uint8_t**>(statistics + 2 * Tile::kOther)),
        own_slices(reinterpret_cast<T*>(mask_rows + Tile::kOther)),
        warp(uniform(static_cast<int>(threadIdx.x) / 32)),
        warp_of_other(warp % Tile::kWarpsOfOther),
        own(warp / Tile::kWarpsOfOther * Tile::kWarpN),
        other(warp_of_other * Tile::kWarpN),
        column(warp_of_other * Tile::kWarpOut) {}

  __device__ void store(const SlicedScores& of_warp) const {
    store_scores<T, kScorePitch>(of_warp, scores + ScoreTile::at(own, other));
  }

  // Adds the products of the stored scores of a tile of the other side with its slices of positions.
  __device__ void add_result(SlicedSums& sums, const SlicedWork<kResult>& work, int first,
                             SliceRing<T, kResult>& slices) const {
    const int count = work.result_slices(first);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const T* const slice = slices.next();
      if (work.first_column + column < work.columns)
        multiply<Tile::kSlicePositions, ScoreTile, AlongRows<Tile::kOutPitch>>(
            sums, scores + ScoreTile::at(own, i * Tile::kSlicePositions), slice + column);
    }
  }

  // Stores the result. All threads have read the scores and all slices.
  __device__ void store_columns(SlicedSums& sums, float scale, const SlicedWork<kResult>& work, const HeadRows& result,
                                int64_t first_position, int positions, bool aligned) const {
    const int first = work.first_column + column, position = work.own.begin + own;
    store_result(sums, scale, ring + warp * Tile::kResult,
                 result.row<T>(work.batch, first_position + position, work.head) + first, result.position,
                 positions - position, work.columns - first, aligned);
  }

  T *const ring, *const scores;
  float* const statistics;
  const uint8_t** const mask_rows;
  T* const own_slices;
  const int warp, warp_of_other;
  const int own, other, column;  // first positions of the warp's scores, and column of its result
};

template <class T>
__global__ void __launch_bounds__(SlicedTile::kThreads, 1)
    attention_large_heads_kernel(const __grid_constant__ Attention call, const Scores<T> score,
                                 const SlicedOptions options) {
  using Tile = SlicedTile;
  constexpr SlicedResult kResult = SlicedResult::y;
  begin_kernel();
  extern __shared__ int4 shared[];
  const SlicedWork<kResult> work(call);
  if (work.b < 0) return;
  const SlicedMemory<T, kResult> memory(shared);
  SliceRing<T, kResult> slices(call, work, options, memory.ring, memory.own_slices);
  const Sequence& sequence = work.sequence;
  const int first_query = work.own.begin, warp_query = first_query + memory.own;
  const Range of_all = call.band.keys_of_all(sequence, work.own);
  if (call.has_mask && threadIdx.x < Tile::kOwn)
    memory.mask_rows[threadIdx.x] = call.mask.row(
        call.row(work.b, sequence, work.head, min(first_query + static_cast<int>(threadIdx.x), sequence.queries - 1)));

  // Place of a row's statistic of this warp, and of one of the warps that share the row.
  const auto place = [&](int row, int warp) {
    return warp * Tile::kOwn + memory.own + row / 2 * 16 + fragment_row(row % 2 * 2);
  };
  const auto max_of_warps = [&](int row, float largest) {
#pragma unroll
    for (int warp = 0; warp < Tile::kWarpsOfOther; ++warp)
      largest = fmaxf(largest, memory.statistics[place(row, warp)]);
    return largest;
  };

  const auto dropout = prepared(call.dropout);
  OnlineSoftmax<Tile::kRowTiles> softmax;
  SlicedSums y = {};
  uint32_t visible_rows = 0;  // that see a key of this warp
  work.each_tile([&](int, int first) {
    const int warp_key = first + memory.other;
    SlicedScores scores = {};
    slices.add_scores(scores, /*is_dp=*/false, memory.own, memory.other);
    const FragmentTerms<T> terms(call, work.b, sequence, work.head, warp_query, warp_key);
    if (!score.is_product)
      each_score<Tile::kRowTiles, Tile::kN / 8>([&](int i, int j, int e, int) {
        scores[i][j][e] = score.of(scores[i][j][e]);
        if (call.has_terms()) scores[i][j][e] += terms(i * 16 + fragment_row(e), j * 8 + fragment_column(e));
      });
    if (call.can_hide() || first < of_all.begin || first + Tile::kOther > of_all.end)
      mask_scores<Tile>(call, sequence, warp_query, warp_key, memory.mask_rows + memory.own, terms, visible_rows,
                        scores);
    else
      visible_rows = ~0u;
#pragma unroll
    for (int row = 0; row < 2 * Tile::kRowTiles; ++row) {
      const float largest = max_of_scores(scores, row, kNegInf<float>);
      if (threadIdx.x % 4 == 0) memory.statistics[place(row, memory.warp_of_other)] = largest;
    }
    __syncthreads();
    softmax.add(scores, y, score.factor, max_of_warps);
    if (call.dropout.seed)
      drop(dropout, call.first_probability(call.row(work.b, sequence, work.head, warp_query)) + warp_key, call.keys,
           scores);
    memory.store(scores);
    memory.add_result(y, work, first, slices);
  });
  wait_for_copies<0>();

  visible_rows |= __shfl_xor_sync(~0u, visible_rows, 1);
  visible_rows |= __shfl_xor_sync(~0u, visible_rows, 2);
#pragma unroll
  for (int row = 0; row < 2 * Tile::kRowTiles; ++row) {
    const float sum = sum_of_row(softmax.sum[row]);
    if (threadIdx.x % 4 == 0) memory.statistics[place(row, memory.warp_of_other)] = visible_rows >> row & 1 ? sum : -1;
  }
  __syncthreads();  // the sums are complete, and all slices and scores have been read
  const float sink = call.sinks.data ? call.sinks.get<T>(work.head) : 0;
#pragma unroll
  for (int row = 0; row < 2 * Tile::kRowTiles; ++row) {
    float sum = 0, max = score.scaled(softmax.max[row]);
    bool none = true;
#pragma unroll
    for (int warp = 0; warp < Tile::kWarpsOfOther; ++warp) {
      const float of_warp = memory.statistics[place(row, warp)];
      if (of_warp < 0) continue;
      sum += of_warp;
      none = false;
    }
    const float of_keys = call.sinks.data ? add_sink(sink, max, sum) : 1;
    const float share = of_keys * dropout.scale / sum;
#pragma unroll
    for (int j = 0; j < Tile::kWarpOut / 8; ++j)
#pragma unroll
      for (int e = row % 2 * 2; e < row % 2 * 2 + 2; ++e) y[row / 2][j][e] = none ? 0 : y[row / 2][j][e] * share;
    const int query = warp_query + row / 2 * 16 + fragment_row(row % 2 * 2);
    if (work.first_column == 0 && memory.warp_of_other == 0 && threadIdx.x % 4 == 0 && query < sequence.queries)
      *call.lse.row<float>(work.batch, sequence.first_query + query, work.head) = max + logf(sum);
  }
  memory.store_columns(y, 1, work, call.y, sequence.first_query, sequence.queries, options.out_aligned);
}

template <class T, SlicedResult kResult>
__global__ void __launch_bounds__(SlicedTile::kThreads, 1)
    attention_large_heads_backward_kernel(const __grid_constant__ Attention call, const Scores<T> score,
                                          const float* const deltas, const SlicedOptions options) {
  using Tile = SlicedTile;
  constexpr bool kOwnsKeys = SlicedWork<kResult>::kOwnsKeys;
  constexpr int kQueries = kOwnsKeys ? Tile::kOther : Tile::kOwn, kKeys = kOwnsKeys ? Tile::kOwn : Tile::kOther;
  begin_kernel();
  extern __shared__ int4 shared[];
  const SlicedWork<kResult> work(call);
  if (work.b < 0) return;
  const SlicedMemory<T, kResult> memory(shared);
  SliceRing<T, kResult> slices(call, work, options, memory.ring, memory.own_slices);
  const Sequence& sequence = work.sequence;
  float *const lse = memory.statistics, *const delta = lse + Tile::kOther;
  const int query_in_tile = kOwnsKeys ? memory.other : memory.own, key_in_tile = kOwnsKeys ? memory.own : memory.other;
  const auto dropout = prepared(call.dropout);
  SlicedSums sums = {};
  work.each_tile([&](int head_of_other, int first_of_other) {
    const int head = kOwnsKeys ? head_of_other : work.head;
    const int first_query = kOwnsKeys ? first_of_other : work.own.begin;
    const int first_key = kOwnsKeys ? work.own.begin : first_of_other;
    float row_lse = 0, row_delta = 0;  // loaded while the products are summed
    if (threadIdx.x < kQueries) {
      const int query = min(first_query + static_cast<int>(threadIdx.x), sequence.queries - 1);
      const int64_t row = call.row(work.b, sequence, head, query);
      row_lse = *call.lse.row<const float>(work.batch, sequence.first_query + query, head);
      row_delta = deltas[row];
      if (call.has_mask) memory.mask_rows[threadIdx.x] = call.mask.row(row);
    }
    SlicedScores s = {}, dp = {};
    slices.add_scores(s, /*is_dp=*/false, memory.own, memory.other);
    slices.add_scores(dp, /*is_dp=*/true, memory.own, memory.other);
    if (threadIdx.x < kQueries) lse[threadIdx.x] = row_lse, delta[threadIdx.x] = row_delta;
    __syncthreads();
    const Range queries{first_query, min(first_query + kQueries, sequence.queries)};
    const Range of_all = call.band.keys_of_all(sequence, queries);
    const bool are_all_visible = !call.can_hide() && first_query + kQueries <= sequence.queries &&
                                 of_all.begin <= first_key && first_key + kKeys <= of_all.end;
    differentiate</*kGeneral=*/true>(call, score, dropout, work.b, sequence, head, first_query + query_in_tile,
                                     first_key + key_in_tile, lse + query_in_tile, delta + query_in_tile,
                                     memory.mask_rows + query_in_tile, are_all_visible, s, dp);
    if (work.is_dv)
      memory.store(s);
    else
      memory.store(dp);
    memory.add_result(sums, work, first_of_other, slices);
  });
  wait_for_copies<0>();
  __syncthreads();  // all slices and scores have been read
  const HeadRows result = !kOwnsKeys ? call.dq : work.is_dv ? call.dv : call.dk;
  memory.store_columns(sums, work.is_dv ? dropout.scale : static_cast<float>(call.scale), work, result,
                       kOwnsKeys ? sequence.first_key : sequence.first_query,
                       kOwnsKeys ? sequence.keys : sequence.queries, options.out_aligned);
}

// Launches blocks for each part of the columns of the results.
template <class T, class Kernel, class... Arguments>
Status launch_sliced(const Context& context, Kernel kernel, const Attention& call, Side side, int parts, int own_slices,
                     bool aligned, bool out_aligned, Arguments... arguments) {
  const int bytes = SlicedTile::kSharedBytes + own_slices * SlicedTile::kOwnSlice * int(sizeof(T));
  const bool keeps_own = bytes <= device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const int heads = side == Side::queries ? call.heads : call.key_heads;
  const Grid grid{most_tiles(call, side, SlicedTile::kOwn) * heads * parts, SlicedTile::kThreads,
                  keeps_own ? bytes : SlicedTile::kSharedBytes};
  return launch(
      context, kernel, grid, call, Scores<T>(call), arguments...,
      SlicedOptions{keeps_own, aligned && are_aligned<T>(call.q) && are_aligned<T>(call.k) && are_aligned<T>(call.v),
                    out_aligned});
}

template <class T>
Status large_heads_forward(const Attention& call, const Context& context) {
  return launch_sliced<T>(context, attention_large_heads_kernel<T>, call, Side::queries,
                          parts_of(call.dim_v, SlicedTile::kOut), parts_of(call.dim, SlicedTile::kFeatures),
                          /*aligned=*/true, are_aligned<T>(call.y));
}

template <class T>
Status large_heads_backward(const Attention& call, void* workspace, const Context& context) {
  const BackwardSums sums(call, workspace);
  FUSEDOPS_TRY(begin_backward(call, sums, context));
  const auto parts = [](int columns) { return parts_of(columns, SlicedTile::kOut); };
  const int slices = parts_of(call.dim, SlicedTile::kFeatures) + parts_of(call.dim_v, SlicedTile::kFeatures);
  const bool aligned = are_aligned<T>(call.dy);
  const float* const deltas = static_cast<const float*>(sums.delta);
  FUSEDOPS_TRY(launch_sliced<T>(context, attention_large_heads_backward_kernel<T, SlicedResult::dk_and_dv>, call,
                                Side::keys, parts(call.dim) + parts(call.dim_v), slices, aligned,
                                are_aligned<T>(call.dk) && are_aligned<T>(call.dv), deltas));
  FUSEDOPS_TRY(launch_sliced<T>(context, attention_large_heads_backward_kernel<T, SlicedResult::dq>, call,
                                Side::queries, parts(call.dim), slices, aligned, are_aligned<T>(call.dq), deltas));
  if (!call.dbias) return {};
  return attention_dbias(call, {sums.delta, int64_t(call.heads) * call.queries, 1, call.queries}, context);
}

}  // namespace fusedops::cuda
