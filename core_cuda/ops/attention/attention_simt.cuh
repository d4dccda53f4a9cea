// Attention in float32 and float64, without tensor cores, which would round float32 to TF32.
//
// 16 x 16 threads hold the scores of a tile of queries and a tile of keys, kPer x kPer each; operands pass through
// shared memory in chunks of depth kChunk. The forward and dq have a block per tile of queries, dk and dv a block per
// tile of keys: every sum has one owner and one order. With more than 256 features, a block has 256 columns of the
// results. Limit: multiply-adds; the backward computes scores twice, and each part of the columns computes them again.
#pragma once

#include "core/cuda/launch.cuh"
#include "core/cuda/random_words.cuh"
#include "ops/attention/attention_bias.cuh"
#include "ops/attention/attention_kernels.h"
#include "ops/attention/attention_scores.h"
#include "ops/attention/attention_tiles.cuh"
#include "ops/attention/softmax_base.cuh"

namespace fusedops::cuda {

inline constexpr int kSide = 16, kChunk = 16;

// kGeneral: with dropout, added terms or both.
template <class T_, int kD_, bool kGeneral_>
struct SimtTile {
  using T = T_;
  static constexpr bool kGeneral = kGeneral_;
  static constexpr int kD = kD_;               // columns of the results of a block, padded with zeros
  static constexpr int kPer = 16 / sizeof(T);  // adjacent rows and columns of a thread: one access
  static constexpr int kSize = kSide * kPer;   // queries, and keys, of a tile
  static constexpr int kColumns = kD / kSide;  // columns of y or of a gradient per thread
  static constexpr int kPitch = kSize + kPer;
  static constexpr int kThreads = kSide * kSide;

  using Tile = T[kPer][kPer];
  using Sums = T[kPer][kColumns];

  static __device__ int row(int i) { return threadIdx.x / kSide * kPer + i; }
  static __device__ int column(int j) { return threadIdx.x % kSide * kPer + j / kPer * kSize + j % kPer; }

  struct alignas(16) Shared {
    T a[kChunk][kPitch], b[kChunk][kPitch];  // operands of multiply(): [depth, row]
    T rows[kChunk][kD];                      // operand of add_rows(): [depth, column]
    T p[kSize][kPitch], ds[kSize][kPitch];   // scores: [column, row]
  };
};

// Some rows of a head.
template <class T>
struct RowsOf {
  const T* first;
  int64_t stride;
  int count, width;

  __device__ T at(int row, int column) const {
    return row < count && column < width ? first[row * stride + column] : T(0);
  }

  __device__ RowsOf from(int column) const { return {first + column, stride, count, width - column}; }
};

// The parts of the columns of the results. Those of a tile are adjacent blocks.
template <class Tile>
FUSEDOPS_HD int simt_parts(const Attention& call) {
  return parts_of(call.dim > call.dim_v ? call.dim : call.dim_v, Tile::kD);
}

// The work of a block.
template <class Tile>
struct SimtWork : HeadTile {
  __device__ SimtWork(const Attention& call, Side side, int parts)
      : HeadTile(find_tile(call, side, blockIdx.x / parts, gridDim.x / parts, Tile::kSize)),
        first_column(static_cast<int>(blockIdx.x) % parts * Tile::kD) {}
  __device__ SimtWork(const Attention& call, Side side) : SimtWork(call, side, simt_parts<Tile>(call)) {}

  int first_column;
};

template <class Tile>
__device__ void copy_chunk(typename Tile::T (&to)[kChunk][Tile::kPitch], const RowsOf<typename Tile::T>& from,
                           int depth) {
#pragma unroll
  for (int i = 0; i < Tile::kPer; ++i)
    to[threadIdx.x % kChunk][Tile::row(i)] = from.at(Tile::row(i), depth + threadIdx.x % kChunk);
}

// products = a b^T
template <class Tile>
__device__ void multiply(typename Tile::Tile& products, const RowsOf<typename Tile::T>& a,
                         const RowsOf<typename Tile::T>& b, typename Tile::Shared& shared) {
#pragma unroll
  for (auto& row : products)
#pragma unroll
    for (auto& product : row) product = 0;
#pragma unroll 1
  for (int depth = 0; depth < a.width; depth += kChunk) {
    __syncthreads();  // the previous chunks have been read
    copy_chunk<Tile>(shared.a, a, depth);
    copy_chunk<Tile>(shared.b, b, depth);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kChunk; ++k)
#pragma unroll
      for (int i = 0; i < Tile::kPer; ++i)
#pragma unroll
        for (int j = 0; j < Tile::kPer; ++j) products[i][j] += shared.a[k][Tile::row(i)] * shared.b[k][Tile::column(j)];
  }
}

// sums += scores^T rows, with scores [column, row] in shared memory.
template <class Tile>
__device__ void add_rows(typename Tile::Sums& sums, const typename Tile::T (&scores)[Tile::kSize][Tile::kPitch],
                         const RowsOf<typename Tile::T>& rows, typename Tile::Shared& shared) {
#pragma unroll 1
  for (int first = 0; first < min(rows.count, Tile::kSize); first += kChunk) {
    __syncthreads();  // scores are complete, and the previous chunk has been read
#pragma unroll
    for (int column = threadIdx.x % kSide; column < Tile::kD; column += kSide)
      shared.rows[threadIdx.x / kSide][column] = rows.at(first + threadIdx.x / kSide, column);
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < kChunk; ++k)
#pragma unroll
      for (int i = 0; i < Tile::kPer; ++i)
#pragma unroll
        for (int j = 0; j < Tile::kColumns; ++j)
          sums[i][j] += scores[first + k][Tile::row(i)] * shared.rows[k][Tile::column(j)];
  }
}

template <class Tile>
__device__ void store(const typename Tile::Sums& sums, typename Tile::T factor, typename Tile::T* to, int64_t stride,
                      int rows, int width, int first_column) {
  to += first_column, width -= first_column;
#pragma unroll
  for (int i = 0; i < Tile::kPer; ++i)
#pragma unroll
    for (int j = 0; j < Tile::kColumns; ++j)
      if (Tile::row(i) < rows && Tile::column(j) < width)
        to[Tile::row(i) * stride + Tile::column(j)] = sums[i][j] * factor;
}

// Accessors of one sequence of the call.
template <class Tile>
struct SimtSequence {
  using T = typename Tile::T;

  const Attention& call;
  const Scores<T>& score;
  int64_t b;
  Sequence sequence;

  __device__ SimtSequence(const Attention& call, const Scores<T>& score, int64_t b)
      : call(call), score(score), b(b), sequence(call.sequence(b)) {}

  // Visible keys and saved statistics of a query of a head.
  struct Query {
    Range keys;           // empty if there is no such query
    const uint8_t* mask;  // null: none
    T slope;              // of ALiBi
    int diagonal;
    int64_t bias;  // place of its row
    T lse, delta;  // backward only
  };

  __device__ Query query(int head, int query) const {
    if (query >= sequence.queries) return {};
    return {call.band.keys(sequence, query),
            call.has_mask ? call.mask.row(call.row(b, sequence, head, query)) : nullptr,
            Tile::kGeneral && call.alibi.data ? call.alibi.get<T>(head) : T(0), query + sequence.shift,
            Tile::kGeneral && call.bias.is_given() ? call.bias_place(b, head) + query * call.bias_row : 0};
  }

  __device__ Query query(const BackwardSums& sums, int head, int index) const {
    Query one = query(head, index);
    if (index >= sequence.queries) return one;
    one.lse = *call.lse.row<const T>(call.batch_index(b), sequence.first_query + index, head);
    one.delta = static_cast<const T*>(sums.delta)[call.row(b, sequence, head, index)];
    return one;
  }

  __device__ bool is_visible(const Query& query, int key) const {
    return query.keys.has(key) && (!query.mask || query.mask[call.mask.has_columns() ? key : 0]) &&
           bias_of(query, key) != kNegInf<T>;
  }

  // The bias of a pair; 0 for keys beyond the band, which may have none.
  __device__ T bias_of(const Query& query, int key) const {
    return Tile::kGeneral && call.bias.is_given() && query.keys.has(key) ? call.bias.at<T>(query.bias, key) : T(0);
  }

  // The score of a pair from the score without added terms.
  __device__ T with_terms(const Query& query, int key, T score) const {
    if (!Tile::kGeneral || !call.has_terms()) return score;
    return score + alibi_bias(query.slope, query.diagonal, key) + bias_of(query, key);
  }

  __device__ T score_of(T product) const { return score.is_product ? product : score.of(product); }

  __device__ RowsOf<T> queries(const HeadRows& of, int head, int first, int width) const {
    return {of.row<const T>(call.batch_index(b), sequence.first_query + first, head), of.position,
            sequence.queries - first, width};
  }
  __device__ RowsOf<T> keys(const HeadRows& of, int head, int first, int width) const {
    return {of.row<const T>(call.batch_index(b), sequence.first_key + first, head), of.position,
            sequence.valid_keys - first, width};
  }

  // With dropout, calls body(i, kept) for the probabilities of a query and a thread's adjacent keys.
  template <class Body>
  __device__ void each_drawn(int head, int query, int first_key, Body body) const {
    if (Tile::kGeneral && call.dropout.seed) {
      const auto dropout = call.dropout.template prepared<T>();
      const int64_t first = call.first_probability(call.row(b, sequence, head, query)) + first_key;
      const RandomWords<Tile::kPer, /*kAligned=*/false> words(dropout.seed, first);
#pragma unroll
      for (int i = 0; i < Tile::kPer; ++i) body(i, words[i] >= dropout.least);
    }
  }

  __device__ T dropout_scale() const { return Tile::kGeneral ? static_cast<T>(call.dropout.scale) : T(1); }

  // Replaces p, a product q k, by the probability, and ds, a product dy v, by the gradient of the scaled product, or of
  // the added terms; zeros if masked.
  template <bool kOfTerms = false>
  __device__ void differentiate(const Query& query, int key, T& p, T& ds) const {
    const T value = score_of(p);
    p = exp2_((score.scaled(with_terms(query, key, value)) - query.lse) * T(kLog2E));
    ds = p * (ds - query.delta) * (kOfTerms ? T(1) : score.slope(value));
    if (!is_visible(query, key)) p = ds = 0;
  }
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    attention_simt_forward_kernel(const __grid_constant__ Attention call, const Scores<typename Tile::T> score) {
  using T = typename Tile::T;
  constexpr int kSize = Tile::kSize, kPer = Tile::kPer;
  begin_kernel();
  extern __shared__ int4 shared[];
  auto& memory = *reinterpret_cast<typename Tile::Shared*>(shared);
  const SimtWork<Tile> tile(call, Side::queries);
  if (tile.sequence < 0) return;
  const SimtSequence<Tile> of(call, score, tile.sequence);
  const int head = tile.head, key_head = call.key_head(head), first_query = tile.tile * kSize;
  const RowsOf<T> q = of.queries(call.q, head, first_query, call.dim);
  const Range keys = call.band.keys(of.sequence, Range{first_query, min(first_query + kSize, of.sequence.queries)});

  typename Tile::Sums y = {};
  T max[kPer], sum[kPer];
  bool any[kPer] = {};
  typename SimtSequence<Tile>::Query queries[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    max[i] = kNegInf<T>, sum[i] = 0, queries[i] = of.query(head, first_query + Tile::row(i));
  for (int first = keys.begin / kSize * kSize; first < keys.end; first += kSize) {
    typename Tile::Tile scores;
    multiply<Tile>(scores, q, of.keys(call.k, key_head, first, call.dim), memory);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      T largest = max[i];
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const int key = first + Tile::column(j);
        const bool kept = of.is_visible(queries[i], key);
        any[i] |= kept;
        scores[i][j] = kept ? of.with_terms(queries[i], key, of.score_of(scores[i][j])) : kNegInf<T>;
        largest = fmax(largest, scores[i][j]);
      }
#pragma unroll
      for (int lane = 1; lane < kSide; lane *= 2) largest = fmax(largest, __shfl_xor_sync(~0u, largest, lane));
      const T base = base_of(largest), rescale = rescale_factor(max[i], largest, score.factor);
      max[i] = largest;
      sum[i] *= rescale;
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const T p = exp2_((scores[i][j] - base) * score.factor);
        sum[i] += p;
        memory.p[Tile::column(j)][Tile::row(i)] = p;
      }
      of.each_drawn(head, first_query + Tile::row(i), first + Tile::column(0), [&](int j, bool kept) {
        if (!kept) memory.p[Tile::column(j)][Tile::row(i)] = 0;
      });
#pragma unroll
      for (T& element : y[i]) element *= rescale;
    }
    add_rows<Tile>(y, memory.p, of.keys(call.v, key_head, first, call.dim_v).from(tile.first_column), memory);
  }

#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    int some = any[i];
#pragma unroll
    for (int lane = 1; lane < kSide; lane *= 2) {
      sum[i] += __shfl_xor_sync(~0u, sum[i], lane);
      some |= __shfl_xor_sync(~0u, some, lane);
    }
    const int query = first_query + Tile::row(i);
    T total = sum[i], largest = score.scaled(max[i]);
    const T rescale = call.sinks.data ? add_sink(call.sinks.get<T>(head), largest, total) : T(1);
    if (query < of.sequence.queries && Tile::column(0) == 0 && tile.first_column == 0)
      *call.lse.row<T>(call.batch_index(of.b), of.sequence.first_query + query, head) = largest + std::log(total);
#pragma unroll
    for (T& element : y[i]) element = some ? element * rescale * of.dropout_scale() / total : 0;
  }
  store<Tile>(y, T(1), call.y.row<T>(call.batch_index(of.b), of.sequence.first_query + first_query, head),
              call.y.position, of.sequence.queries - first_query, call.dim_v, tile.first_column);
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    attention_simt_dq_kernel(const __grid_constant__ Attention call, const Scores<typename Tile::T> score,
                             const BackwardSums sums) {
  using T = typename Tile::T;
  constexpr int kSize = Tile::kSize, kPer = Tile::kPer;
  begin_kernel();
  extern __shared__ int4 shared[];
  auto& memory = *reinterpret_cast<typename Tile::Shared*>(shared);
  const SimtWork<Tile> tile(call, Side::queries);
  if (tile.sequence < 0) return;
  const SimtSequence<Tile> of(call, score, tile.sequence);
  const int head = tile.head, key_head = call.key_head(head), first_query = tile.tile * kSize;
  const RowsOf<T> q = of.queries(call.q, head, first_query, call.dim);
  const RowsOf<T> dy = of.queries(call.dy, head, first_query, call.dim_v);
  const Range keys = call.band.keys(of.sequence, Range{first_query, min(first_query + kSize, of.sequence.queries)});

  typename SimtSequence<Tile>::Query queries[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) queries[i] = of.query(sums, head, first_query + Tile::row(i));
  typename Tile::Sums dq = {};
  for (int first = keys.begin / kSize * kSize; first < keys.end; first += kSize) {
    const RowsOf<T> k = of.keys(call.k, key_head, first, call.dim);
    typename Tile::Tile p, ds;
    multiply<Tile>(p, q, k, memory);
    multiply<Tile>(ds, dy, of.keys(call.v, key_head, first, call.dim_v), memory);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      of.each_drawn(head, first_query + Tile::row(i), first + Tile::column(0),
                    [&](int j, bool kept) { ds[i][j] = kept ? ds[i][j] * of.dropout_scale() : 0; });
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        of.differentiate(queries[i], first + Tile::column(j), p[i][j], ds[i][j]);
        memory.ds[Tile::column(j)][Tile::row(i)] = ds[i][j];
      }
    }
    add_rows<Tile>(dq, memory.ds, k.from(tile.first_column), memory);
  }
  store<Tile>(dq, static_cast<T>(call.scale),
              call.dq.row<T>(call.batch_index(of.b), of.sequence.first_query + first_query, head), call.dq.position,
              of.sequence.queries - first_query, call.dim, tile.first_column);
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    attention_simt_dk_dv_kernel(const __grid_constant__ Attention call, const Scores<typename Tile::T> score,
                                const BackwardSums sums) {
  using T = typename Tile::T;
  constexpr int kSize = Tile::kSize, kPer = Tile::kPer;
  begin_kernel();
  extern __shared__ int4 shared[];
  auto& memory = *reinterpret_cast<typename Tile::Shared*>(shared);
  const SimtWork<Tile> tile(call, Side::keys);
  if (tile.sequence < 0) return;
  const SimtSequence<Tile> of(call, score, tile.sequence);
  const int key_head = tile.head, first_key = tile.tile * kSize;
  const RowsOf<T> k = of.keys(call.k, key_head, first_key, call.dim);
  const RowsOf<T> v = of.keys(call.v, key_head, first_key, call.dim_v);
  const Range keys{first_key, min(first_key + kSize, of.sequence.valid_keys)};
  const Range queries = keys.is_empty() ? Range{0, 0} : call.band.queries(of.sequence, keys);

  typename Tile::Sums dk = {}, dv = {};
  for (int head = key_head * call.group; head < (key_head + 1) * call.group; ++head)
    for (int first = queries.begin / kSize * kSize; first < queries.end; first += kSize) {
      const RowsOf<T> q = of.queries(call.q, head, first, call.dim);
      const RowsOf<T> dy = of.queries(call.dy, head, first, call.dim_v);
      typename Tile::Tile p, ds;
      multiply<Tile>(p, k, q, memory);
      multiply<Tile>(ds, v, dy, memory);
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const auto query = of.query(sums, head, first + Tile::column(j));
        uint32_t are_dropped = 0;  // one bit per key
        of.each_drawn(head, first + Tile::column(j), first_key + Tile::row(0), [&](int i, bool kept) {
          ds[i][j] = kept ? ds[i][j] * of.dropout_scale() : 0;
          are_dropped |= uint32_t(!kept) << i;
        });
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
          of.differentiate(query, first_key + Tile::row(i), p[i][j], ds[i][j]);
          memory.p[Tile::column(j)][Tile::row(i)] = are_dropped >> i & 1 ? 0 : p[i][j];
          memory.ds[Tile::column(j)][Tile::row(i)] = ds[i][j];
        }
      }
      add_rows<Tile>(dv, memory.p, dy.from(tile.first_column), memory);
      add_rows<Tile>(dk, memory.ds, q.from(tile.first_column), memory);
    }
  const int64_t position = of.sequence.first_key + first_key;
  const int rows = of.sequence.keys - first_key;
  store<Tile>(dk, static_cast<T>(call.scale), call.dk.row<T>(call.batch_index(of.b), position, key_head),
              call.dk.position, rows, call.dim, tile.first_column);
  store<Tile>(dv, of.dropout_scale(), call.dv.row<T>(call.batch_index(of.b), position, key_head), call.dv.position,
              rows, call.dim_v, tile.first_column);
}

// The gradient of a bias. A block has a tile of one of its matrices, and loops over the heads that share the matrix and
// over rows or columns that it lacks.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    attention_simt_dbias_kernel(const __grid_constant__ Attention call, const Scores<typename Tile::T> score,
                                const BackwardSums sums, const __grid_constant__ BiasMatrices matrices) {
  using T = typename Tile::T;
  constexpr int kSize = Tile::kSize, kPer = Tile::kPer;
  begin_kernel();
  extern __shared__ int4 shared[];
  auto& memory = *reinterpret_cast<typename Tile::Shared*>(shared);
  const BiasTile tile(call, matrices, blockIdx.x, kSize, kSize);
  typename Tile::Tile total = {};
  for (int64_t n = 0; n < matrices.sharing_heads; ++n) {
    const int64_t of_matrix = matrices.heads.row_at(tile.place, n);
    const int head = static_cast<int>(of_matrix % call.heads), key_head = call.key_head(head);
    const SimtSequence<Tile> of(call, score, of_matrix / call.heads);
    for (int first_query = tile.queries.begin; first_query < tile.queries.end; first_query += kSize) {
      const RowsOf<T> q = of.queries(call.q, head, first_query, call.dim);
      const RowsOf<T> dy = of.queries(call.dy, head, first_query, call.dim_v);
      typename SimtSequence<Tile>::Query queries[kPer];
#pragma unroll
      for (int i = 0; i < kPer; ++i) queries[i] = of.query(sums, head, first_query + Tile::row(i));
      for (int first_key = tile.keys.begin; first_key < tile.keys.end; first_key += kSize) {
        typename Tile::Tile p, ds;
        multiply<Tile>(p, q, of.keys(call.k, key_head, first_key, call.dim), memory);
        multiply<Tile>(ds, dy, of.keys(call.v, key_head, first_key, call.dim_v), memory);
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
          of.each_drawn(head, first_query + Tile::row(i), first_key + Tile::column(0),
                        [&](int j, bool kept) { ds[i][j] = kept ? ds[i][j] * of.dropout_scale() : 0; });
#pragma unroll
          for (int j = 0; j < kPer; ++j) {
            of.template differentiate</*kOfTerms=*/true>(queries[i], first_key + Tile::column(j), p[i][j], ds[i][j]);
            total[i][j] += ds[i][j];
          }
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPer; ++i)
#pragma unroll
    for (int j = 0; j < kPer; ++j) memory.p[Tile::column(j)][Tile::row(i)] = total[i][j];
  __syncthreads();
  store_bias_tile<T>(call, matrices, tile, kSize, kSize, Tile::kThreads,
                     [&](int row, int column) -> T& { return memory.p[column][row]; });
}

// Calls body(Tag<Tile>()) with the tile that has enough columns.
template <bool kGeneral, class Body>
Status with_tile(const Attention& call, Body body) {
  const int dim = std::max(call.dim, call.dim_v);
  const auto with_type = [&](auto type) {
    using T = typename decltype(type)::type;
    if (dim <= 64) return body(Tag<SimtTile<T, 64, kGeneral>>());
    if (dim <= 128) return body(Tag<SimtTile<T, 128, kGeneral>>());
    return body(Tag<SimtTile<T, 256, kGeneral>>());
  };
  return call.dtype == DType::f64 ? with_type(Tag<double>()) : with_type(Tag<float>());
}

template <class Tile>
Grid simt_grid(const Attention& call, Side side) {
  const int heads = side == Side::queries ? call.heads : call.key_heads;
  return {most_tiles(call, side, Tile::kSize) * heads * simt_parts<Tile>(call), Tile::kThreads,
          int(sizeof(typename Tile::Shared))};
}

template <bool kGeneral>
Status simt_forward(const Attention& call, const Context& context) {
  return with_tile<kGeneral>(call, [&](auto tag) {
    using Tile = typename decltype(tag)::type;
    return launch(context, attention_simt_forward_kernel<Tile>, simt_grid<Tile>(call, Side::queries), call,
                  Scores<typename Tile::T>(call));
  });
}

template <bool kGeneral>
Status simt_backward(const Attention& call, void* workspace, const Context& context) {
  const BackwardSums sums(call, workspace);
  FUSEDOPS_TRY(begin_backward(call, sums, context));
  return with_tile<kGeneral>(call, [&](auto tag) {
    using Tile = typename decltype(tag)::type;
    const Scores<typename Tile::T> score(call);
    FUSEDOPS_TRY(
        launch(context, attention_simt_dq_kernel<Tile>, simt_grid<Tile>(call, Side::queries), call, score, sums));
    FUSEDOPS_TRY(
        launch(context, attention_simt_dk_dv_kernel<Tile>, simt_grid<Tile>(call, Side::keys), call, score, sums));
    if constexpr (kGeneral)
      if (call.dbias) {
        const BiasMatrices matrices(call);
        const int64_t blocks = bias_tiles(matrices, Tile::kSize, Tile::kSize);
        return launch(context, attention_simt_dbias_kernel<Tile>,
                      Grid{blocks, Tile::kThreads, int(sizeof(typename Tile::Shared))}, call, score, sums, matrices);
      }
    return Status();
  });
}

}  // namespace fusedops::cuda
