// attention: y = softmax(scale * q k^T, masked) v, for each head of each sequence, without a matrix of all scores.
//   lse = log(sum(exp(scale * q k^T))) over the visible keys: the backward recomputes the softmax from it. It is -inf
//     if no key is visible. attention_lse returns it, too
//   backward, with p = softmax(...), d = dy v^T and delta = sum(dy * y) - dlse over a row:
//     ds = p * (d - delta);  dq = scale * ds k;  dk = scale * ds^T q;  dv = p^T dy
//   dropout replaces p by m * p in y and dv, and d by m * d, with m = 0 or 1 / (1 - rate); lse and ds use p itself
//   a soft cap c replaces a score s = scale * q k^T by t = c * tanh(s / c); ds gets another factor 1 - (t / c)^2
//   alibi adds -slope * |a - j| to the score of key j and a query with key a on its diagonal
//   a bias is added to the scores, after the soft cap; its gradient is the sum of p * (d - delta) over the scores that
//     share an element
//   a sink is one more logit in the denominator of each row of a head: lse includes it, and its gradient is the sum
//     over rows of -exp(sink - lse) * delta
//
// Sources: Dao, "FlashAttention-2: Faster attention with better parallelism and work partitioning", 2023; Press, Smith
// and Lewis, "Train short, test long: attention with linear biases enables input length extrapolation", 2022; Xiao et
// al., "Efficient streaming language models with attention sinks", 2024.
#pragma once

#include <cmath>
#include <limits>

#include "core/common/dropout.h"
#include "core/common/numeric.h"
#include "core/declaration/operator.h"
#include "ops/attention/mask.h"

namespace fusedops {

// The scale is one number, or empty for 1 / sqrt(D). A window or soft cap of 0 is none.
inline constexpr AttributeList kVarlenOptions{
    {"causal", Type::boolean, "false"},
    {.name = "scale", .type = Type::f64s, .value = "[]", .bounds = kFinite},
    {.name = "window", .type = Type::i64, .value = "0", .bounds = kNotNegative},
    {.name = "softcap", .value = "0.0", .bounds = kFiniteNotNegative}};
inline constexpr AttributeList kAttentionOptions = kVarlenOptions.with(
    {{.name = "seq_dim", .type = Type::i64, .value = "-3", .bounds = Bounds{-3, -2}}, kDropoutAttribute});

constexpr Input in_heads(const char* name, Kind kind = Kind::tensor) { return {name, kind, Layout::heads}; }
constexpr Input packed_offsets(const char* name) { return {.name = name, .parameter = true}; }
inline constexpr Input kOptionalMask{.name = "mask", .kind = Kind::optional, .parameter = true};

inline constexpr int64_t kMaxFeatures = 576;         // D and Dv
inline constexpr int64_t kMaxPositions = 1ll << 30;  // T and S: positions, and their sums, are of 32 bits

// With a seed, dropout applies to the probabilities, as `dropout` does to a tensor [..., heads, queries, keys] of them.
inline constexpr Signature kAttention{
    .name = "attention",
    .inputs = {in_heads("q"),
               in_heads("k"),
               in_heads("v"),
               kOptionalMask,
               {"lengths", Kind::optional},
               kOptionalSeed,
               {"query_offset", Kind::optional},
               optional_parameter("alibi"),
               optional_parameter("sinks"),
               optional_parameter("bias")},
    .outputs = {{"y", "q"}, {"lse", "compute(q)", /*saved=*/true}},
    .attributes = kAttentionOptions,
    .axes = {{"...ThD, ...ShD, ...ShE, ~...hTS, ..., Z, ..., h, h, ~...hTS -> ...ThE, ...hT; seed@...hTS",
              "seq_dim=-3"},
             {"...hTD, ...hSD, ...hSE, ~...hTS, ..., Z, ..., h, h, ~...hTS -> ...hTE, ...hT; seed@...hTS",
              "seq_dim=-2"}},
    .autocast = true,
};

// The same operator with lse as a differentiable result. It is a separate operator, since the backward of a saved
// output needs no gradient of it.
consteval Signature returning_lse(Signature op, const char* name) {
  op.function = op.name;
  op.name = name;
  op.outputs = {op.outputs[0], {op.outputs[1].name, op.outputs[1].dtype}};
  return op;
}

inline constexpr Signature kAttentionLse = returning_lse(kAttention, "attention_lse");

Operator attention();
Operator attention_lse();
Status attention_cpu(const Call& call);  // this and the other kernels also run attention_varlen
FUSEDOPS_CUDA_KERNEL Status attention_cuda(const Call& call);

// An absent dy stands for zeros.
inline constexpr InputList kBackwardTensors{
    in_heads("dy", Kind::optional), in_heads("q"), in_heads("k"), in_heads("v"), in_heads("y"), {"lse"}};

inline constexpr Signature kAttentionBackward{
    .name = "attention_backward",
    .inputs = kBackwardTensors.with({kOptionalMask,
                                     {"lengths", Kind::optional},
                                     kOptionalSeed,
                                     {"dlse", Kind::optional},
                                     {"query_offset", Kind::optional},
                                     optional_parameter("alibi"),
                                     optional_parameter("sinks"),
                                     optional_parameter("bias")}),
    .outputs = {{"dq", "q"}, {"dk", "k"}, {"dv", "v"}, {"dsinks", "sinks"}, {"dbias", "bias"}},
    .attributes = with_needs(kAttentionOptions, {"need_dsinks", "need_dbias"}),
    .axes = {{"...ThE, ...ThD, ...ShD, ...ShE, ...ThE, ...hT, ~...hTS, ..., Z, ...hT, ..., h, h, ~...hTS -> "
              "...ThD, ...ShD, ...ShE, h/..., ~...hTS; seed@...hTS",
              "seq_dim=-3"},
             {"...hTE, ...hTD, ...hSD, ...hSE, ...hTE, ...hT, ~...hTS, ..., Z, ...hT, ..., h, h, ~...hTS -> "
              "...hTD, ...hSD, ...hSE, h/..., ~...hTS; seed@...hTS",
              "seq_dim=-2"}},
};

Operator attention_backward();
Status attention_backward_cpu(const Call& call);
FUSEDOPS_CUDA_KERNEL Status attention_backward_cuda(const Call& call);

// Packed sequences: q [N, H, D], k and v [M, Hk, D]. Sequence b has the positions from offsets[b] to offsets[b + 1];
// both offsets are int32 [B + 1]. lse is [H, N].
inline constexpr Signature kAttentionVarlen{
    .name = "attention_varlen",
    .inputs = {in_heads("q"), in_heads("k"), in_heads("v"), packed_offsets("offsets_q"), packed_offsets("offsets_k"),
               optional_parameter("alibi"), optional_parameter("sinks")},
    .outputs = {{"y", "q"}, {"lse", "compute(q)", /*saved=*/true}},
    .attributes = kVarlenOptions,
    .axes = {{"ThD, ShD, ShE, I, I, h, h -> ThE, hT"}},
    .autocast = true,
};

inline constexpr Signature kAttentionVarlenLse = returning_lse(kAttentionVarlen, "attention_varlen_lse");

Operator attention_varlen();
Operator attention_varlen_lse();

inline constexpr Signature kAttentionVarlenBackward{
    .name = "attention_varlen_backward",
    .inputs = kBackwardTensors.with({packed_offsets("offsets_q"),
                                     packed_offsets("offsets_k"),
                                     {"dlse", Kind::optional},
                                     optional_parameter("alibi"),
                                     optional_parameter("sinks")}),
    .outputs = {{"dq", "q"}, {"dk", "k"}, {"dv", "v"}, {"dsinks", "sinks"}},
    .attributes = with_needs(kVarlenOptions, {"need_dsinks"}),
    .axes = {{"ThE, ThD, ShD, ShE, ThE, hT, I, I, hT, h, h -> ThD, ShD, ShE, h"}},
};

Operator attention_varlen_backward();

// A half-open range of positions.
struct Range {
  int begin, end;

  FUSEDOPS_HD bool is_empty() const { return begin >= end; }
  FUSEDOPS_HD bool has(int position) const { return begin <= position && position < end; }
};

// One sequence of a batch. Query i is on the diagonal with key i + shift: without a query offset, the last query with
// the last key.
struct Sequence {
  int64_t first_query, first_key;  // first positions in tensors of packed sequences, otherwise 0
  int queries, keys;
  int valid_keys;  // the keys behind them are padding
  int shift;
};

// The keys that causality, window and length leave visible to a query.
struct Band {
  bool causal;
  int window;  // 0: none

  FUSEDOPS_HD Range keys(const Sequence& sequence, int query) const {
    const int diagonal = query + sequence.shift;
    const int begin = window ? diagonal - window + 1 : 0, end = causal ? diagonal + 1 : sequence.keys;
    return {begin < 0 ? 0 : begin, end < sequence.valid_keys ? end : sequence.valid_keys};
  }

  // Keys that at least one query of a tile sees.
  FUSEDOPS_HD Range keys(const Sequence& sequence, Range queries) const {
    return {keys(sequence, queries.begin).begin, keys(sequence, queries.end - 1).end};
  }

  // Keys that every query of a tile sees: their scores need no position check.
  FUSEDOPS_HD Range keys_of_all(const Sequence& sequence, Range queries) const {
    return {keys(sequence, queries.end - 1).begin, keys(sequence, queries.begin).end};
  }

  // Queries that see at least one key of a tile of valid keys.
  FUSEDOPS_HD Range queries(const Sequence& sequence, Range keys) const {
    const int begin = causal ? keys.begin - sequence.shift : 0;
    const int end = window ? keys.end - 1 - sequence.shift + window : sequence.queries;
    return {begin < 0 ? 0 : begin, end < sequence.queries ? end : sequence.queries};
  }
};

// A tensor of rows: sequence, position, head.
struct HeadRows {
  void* data;
  int64_t sequence, position, head;  // strides in elements

  template <class T>
  FUSEDOPS_HD T* row(int64_t b, int64_t t, int64_t h) const {
    return static_cast<T*>(data) + b * sequence + t * position + h * head;
  }
};

// One integer for each sequence, in int32 or int64.
struct PerSequence {
  const void* data = nullptr;
  bool has_64_bits = false;

  FUSEDOPS_HD int64_t at(int64_t b) const {
    return has_64_bits ? static_cast<const int64_t*>(data)[b] : static_cast<const int32_t*>(data)[b];
  }
};

// The arguments of all attention operators, for all kernels. Tensors that an operator lacks are null.
struct Attention {
  static Attention of(const Call& call);

  FUSEDOPS_HD Sequence sequence(int64_t b) const {
    if (offsets_q) {
      const int keys = offsets_k[b + 1] - offsets_k[b];
      const int queries = offsets_q[b + 1] - offsets_q[b];
      return {offsets_q[b], offsets_k[b], queries, keys, keys, keys - queries};
    }
    const int shift = query_offset.data ? static_cast<int>(query_offset.at(b)) : keys - queries;
    return {0, 0, queries, keys, valid_keys(b), shift};
  }

  // A row is a query of a head of a sequence, in the order of lse.
  FUSEDOPS_HD int64_t rows() const { return heads * (offsets_q ? int64_t(packed_queries) : sequences * queries); }
  FUSEDOPS_HD int64_t row(int64_t b, const Sequence& sequence, int64_t head, int64_t query) const {
    return offsets_q ? head * packed_queries + sequence.first_query + query : (b * heads + head) * queries + query;
  }

  // Place in the bias of the first query of a head; others are bias_row apart.
  FUSEDOPS_HD int64_t bias_place(int64_t b, int64_t head) const { return bias.place((b * heads + head) * queries); }

  bool has_scores() const { return rows() > 0 && keys > 0; }

  // Place of a row's first probability, at which dropout's counters begin. Rows of one head are consecutive: it is in
  // one run. Not for packed sequences.
  FUSEDOPS_HD int64_t first_probability(int64_t row) const { return dropout.place(row * keys); }

  // sum(dy * y) of a row minus the gradient of its lse. If no key is visible, lse is constant and has no gradient.
  template <class A>
  FUSEDOPS_HD A delta(A sum, int64_t b, int64_t position, int64_t head) const {
    const bool is_constant = !dlse.data || *lse.row<const A>(b, position, head) == -std::numeric_limits<A>::infinity();
    return is_constant ? sum : sum - *dlse.row<const A>(b, position, head);
  }

  // Index along the batch dimension of the tensors, which packed sequences lack.
  FUSEDOPS_HD int64_t batch_index(int64_t b) const { return offsets_q ? 0 : b; }

  FUSEDOPS_HD int key_head(int head) const { return head / group; }

  size_t bias_bytes() const { return bias.elements() * (bias.is_f32() ? sizeof(float) : size_of(dtype)); }

  // True if a head has more features than the tiles of most kernels.
  FUSEDOPS_HD bool has_large_heads() const { return dim > 256 || dim_v > 256; }

  // True if a term is added to scores.
  FUSEDOPS_HD bool has_terms() const { return alibi.data || bias.is_given(); }

  // True if keys may be hidden that the band leaves visible.
  FUSEDOPS_HD bool can_hide() const { return has_mask || bias.is_given(); }

  DType dtype;
  int64_t sequences;
  int queries, keys;  // of each sequence, or of all together if they are packed
  int heads, key_heads, group;
  int dim, dim_v;
  HeadRows q, k, v, y, lse;  // lse has one element per row
  HeadRows dy, dq, dk, dv;   // backward only
  HeadRows dlse;             // null data: lse has no upstream gradient
  size_t dy_zeros;           // bytes of zeros at the start of the workspace that replace an absent dy
  Band band;
  double scale, softcap;
  Dropout dropout;

  BroadcastMask mask;  // rows are (sequence, head, query)
  bool has_mask;
  PerSequence lengths;                   // null data: all keys are valid
  PerSequence query_offset;              // null data: the number of keys minus that of queries
  Parameter alibi, sinks;                // one number for each head
  void* dsinks;                          // null: not needed
  const int32_t *offsets_q, *offsets_k;  // null: not packed. Monotone: checked on the CPU, sanitized on a GPU
  int packed_queries, packed_keys;
  BroadcastBias bias;  // rows are those of the mask
  int64_t bias_row;    // elements between the rows of adjacent queries; 0 if queries share a row
  void* dbias;         // null: not needed

 private:
  // On a GPU neither is checked before: a length is clamped, and a query offset out of range leaves no key visible.
  FUSEDOPS_HD int valid_keys(int64_t b) const {
    if (query_offset.data && (query_offset.at(b) < 0 || query_offset.at(b) > keys)) return 0;
    if (!lengths.data) return keys;
    const int64_t length = lengths.at(b);
    return length < 0 ? 0 : length < keys ? static_cast<int>(length) : keys;
  }
};

// The distinct matrices [queries, keys] of a bias, by the place of their first element. Several heads may share one.
struct BiasMatrices {
  BiasMatrices() = default;

  // The call must have scores: the strides of a bias follow from its rows.
  explicit BiasMatrices(const Attention& call)
      : heads(call.bias.of_matrices(call.queries)),
        has_rows(call.bias_row != 0),
        rows(has_rows ? call.queries : 1),
        columns(call.bias.has_columns() ? call.keys : 1),
        size(int64_t(rows) * columns),
        count(call.bias.elements() / size),
        sharing_heads(heads.sharing_rows()) {}

  BroadcastRows heads;    // of all sequences
  bool has_rows = false;  // false: one row for all queries
  int rows = 0, columns = 0;
  int64_t size = 0, count = 0, sharing_heads = 0;
};

}  // namespace fusedops
