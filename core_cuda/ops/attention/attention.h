// attention: y = softmax(scale * q k^T, masked) v, for each head of each sequence, without a matrix of all scores.
//   lse = log(sum(exp(scale * q k^T))), of the kept scores: what the backward needs to compute the softmax again.
//     -inf where no key is kept. attention_lse returns it, too
//   backward, with p = softmax(...), d = dy v^T and delta = sum(dy * y) - dlse over a row:
//     ds = p * (d - delta);  dq = scale * ds k;  dk = scale * ds^T q;  dv = p^T dy
//   dropout makes m * p of p in y and dv, and m * d of d, where m is 0 or 1 / (1 - rate); lse and ds keep p itself
//   a soft cap c makes t = c * tanh(s / c) of a score s = scale * q k^T; ds gets another factor 1 - (t / c)^2
//
// Source: Dao, "FlashAttention-2: Faster attention with better parallelism and work partitioning", 2023.
#pragma once

#include <cmath>
#include <limits>

#include "core/common/dropout.h"
#include "core/common/numeric.h"
#include "core/declaration/operator.h"
#include "ops/attention/mask.h"

namespace fusedops {

// The scale is one number, or none: 1 / sqrt(D). A window or a soft cap of 0 stands for none.
inline constexpr AttributeList kVarlenOptions{
    {"causal", Type::boolean, "false"},
    {.name = "scale", .type = Type::f64s, .value = "[]", .bounds = kFinite},
    {.name = "window", .type = Type::i64, .value = "0", .bounds = kNotNegative},
    {.name = "softcap", .value = "0.0", .bounds = kFiniteNotNegative}};
inline constexpr AttributeList kAttentionOptions{
    kVarlenOptions[0],
    kVarlenOptions[1],
    kVarlenOptions[2],
    kVarlenOptions[3],
    {.name = "seq_dim", .type = Type::i64, .value = "-3", .bounds = Bounds{-3, -2}},
    kDropoutAttribute};

inline constexpr int64_t kMaxFeatures = 256;         // D and Dv
inline constexpr int64_t kMaxPositions = 1ll << 30;  // T and S: positions, and their sums, are of 32 bits

// With a seed, there is dropout on the probabilities: that of `dropout` on a tensor of all of them, [..., heads,
// queries, keys].
inline constexpr Signature kAttention{
    .name = "attention",
    .inputs = {{"q", Kind::tensor, Layout::heads},
               {"k", Kind::tensor, Layout::heads},
               {"v", Kind::tensor, Layout::heads},
               {"mask", Kind::optional, Layout::contiguous, /*parameter=*/true},
               {"lengths", Kind::optional},
               kOptionalSeed},
    .outputs = {{"y", "q"}, {"lse", "compute(q)", /*saved=*/true}},
    .attributes = kAttentionOptions,
    .axes = {{"...ThD, ...ShD, ...ShE, ~...hTS, ..., Z -> ...ThE, ...hT", "!seed seq_dim=-3"},
             {"...hTD, ...hSD, ...hSE, ~...hTS, ..., Z -> ...hTE, ...hT", "!seed seq_dim=-2"}},
};

// The same operator with lse as a result that has a gradient: an operator of its own, since a saved output costs
// nothing in a backward that does not ask for its gradient.
consteval Signature returning_lse(Signature op, const char* name) {
  op.name = name;
  op.outputs = {op.outputs[0], {op.outputs[1].name, op.outputs[1].dtype}};
  return op;
}

inline constexpr Signature kAttentionLse = returning_lse(kAttention, "attention_lse");

Operator attention();
Operator attention_lse();
Status attention_cpu(const Call& call);  // of attention_varlen too, as are the other kernels
FUSEDOPS_CUDA_KERNEL Status attention_cuda(const Call& call);

// An absent dy is zeros.
inline constexpr Signature kAttentionBackward{
    .name = "attention_backward",
    .inputs = {{"dy", Kind::optional, Layout::heads},
               {"q", Kind::tensor, Layout::heads},
               {"k", Kind::tensor, Layout::heads},
               {"v", Kind::tensor, Layout::heads},
               {"y", Kind::tensor, Layout::heads},
               {"lse"},
               {"mask", Kind::optional, Layout::contiguous, /*parameter=*/true},
               {"lengths", Kind::optional},
               kOptionalSeed,
               {"dlse", Kind::optional}},
    .outputs = {{"dq", "q"}, {"dk", "k"}, {"dv", "v"}},
    .attributes = kAttentionOptions,
    .axes = {{"...ThE, ...ThD, ...ShD, ...ShE, ...ThE, ...hT, ~...hTS, ..., Z, ...hT -> ...ThD, ...ShD, ...ShE",
              "!seed seq_dim=-3"},
             {"...hTE, ...hTD, ...hSD, ...hSE, ...hTE, ...hT, ~...hTS, ..., Z, ...hT -> ...hTD, ...hSD, ...hSE",
              "!seed seq_dim=-2"}},
};

Operator attention_backward();
Status attention_backward_cpu(const Call& call);
FUSEDOPS_CUDA_KERNEL Status attention_backward_cuda(const Call& call);

// Sequences one behind the other: q [N, H, D], k and v [M, Hk, D]. Sequence b has the positions from offsets[b] to
// offsets[b + 1] of them; both offsets are int32 [B + 1]. lse is [H, N].
inline constexpr Signature kAttentionVarlen{
    .name = "attention_varlen",
    .inputs = {{"q", Kind::tensor, Layout::heads},
               {"k", Kind::tensor, Layout::heads},
               {"v", Kind::tensor, Layout::heads},
               {"offsets_q", Kind::tensor, Layout::contiguous, /*parameter=*/true},
               {"offsets_k", Kind::tensor, Layout::contiguous, /*parameter=*/true}},
    .outputs = {{"y", "q"}, {"lse", "compute(q)", /*saved=*/true}},
    .attributes = kVarlenOptions,
    .axes = {{"ThD, ShD, ShE, I, I -> ThE, hT"}},
};

inline constexpr Signature kAttentionVarlenLse = returning_lse(kAttentionVarlen, "attention_varlen_lse");

Operator attention_varlen();
Operator attention_varlen_lse();

inline constexpr Signature kAttentionVarlenBackward{
    .name = "attention_varlen_backward",
    .inputs = {{"dy", Kind::optional, Layout::heads},
               {"q", Kind::tensor, Layout::heads},
               {"k", Kind::tensor, Layout::heads},
               {"v", Kind::tensor, Layout::heads},
               {"y", Kind::tensor, Layout::heads},
               {"lse"},
               {"offsets_q", Kind::tensor, Layout::contiguous, /*parameter=*/true},
               {"offsets_k", Kind::tensor, Layout::contiguous, /*parameter=*/true},
               {"dlse", Kind::optional}},
    .outputs = {{"dq", "q"}, {"dk", "k"}, {"dv", "v"}},
    .attributes = kVarlenOptions,
    .axes = {{"ThE, ThD, ShD, ShE, ThE, hT, I, I, hT -> ThD, ShD, ShE"}},
};

Operator attention_varlen_backward();

// A half-open range of positions.
struct Range {
  int begin, end;

  FUSEDOPS_HD bool is_empty() const { return begin >= end; }
  FUSEDOPS_HD bool has(int position) const { return begin <= position && position < end; }
};

// One sequence of a batch. Query i stands beside key i + shift: the last query beside the last key.
struct Sequence {
  int64_t first_query, first_key;  // where it begins in tensors that hold sequences one behind the other, otherwise 0
  int queries, keys;
  int valid_keys;  // the keys behind them are padding

  FUSEDOPS_HD int shift() const { return keys - queries; }
};

// Which keys a query sees by its position: what causality, the window and the lengths leave of them.
struct Band {
  bool causal;
  int window;  // 0: none

  FUSEDOPS_HD Range keys(const Sequence& sequence, int query) const {
    const int diagonal = query + sequence.shift();
    const int begin = window ? diagonal - window + 1 : 0, end = causal ? diagonal + 1 : sequence.keys;
    return {begin < 0 ? 0 : begin, end < sequence.valid_keys ? end : sequence.valid_keys};
  }

  // Those that at least one query of a tile sees.
  FUSEDOPS_HD Range keys(const Sequence& sequence, Range queries) const {
    return {keys(sequence, queries.begin).begin, keys(sequence, queries.end - 1).end};
  }

  // Those that every query of a tile sees: no score among them needs a look at its position.
  FUSEDOPS_HD Range keys_of_all(const Sequence& sequence, Range queries) const {
    return {keys(sequence, queries.end - 1).begin, keys(sequence, queries.begin).end};
  }

  // The queries that see at least one key of a tile, which has only kept ones.
  FUSEDOPS_HD Range queries(const Sequence& sequence, Range keys) const {
    const int begin = causal ? keys.begin - sequence.shift() : 0;
    const int end = window ? keys.end - 1 - sequence.shift() + window : sequence.queries;
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

// What all attention operators are told; the kernels of all of them take it.
struct Attention {
  static Attention of(const Call& call);  // of any of the operators; what one lacks is null

  FUSEDOPS_HD Sequence sequence(int64_t b) const {
    if (offsets_q) {
      const int keys = offsets_k[b + 1] - offsets_k[b];
      return {offsets_q[b], offsets_k[b], offsets_q[b + 1] - offsets_q[b], keys, keys};
    }
    return {0, 0, queries, keys, valid_keys(b)};
  }

  // A row is a query of a head, of all sequences: the last dimensions of lse.
  FUSEDOPS_HD int64_t rows() const { return heads * (offsets_q ? int64_t(packed_queries) : sequences * queries); }
  FUSEDOPS_HD int64_t row(int64_t b, const Sequence& sequence, int64_t head, int64_t query) const {
    return offsets_q ? head * packed_queries + sequence.first_query + query : (b * heads + head) * queries + query;
  }

  // The position of a row's first probability in a tensor of all: dropout counts from there. Not of packed sequences.
  FUSEDOPS_HD int64_t first_probability(int64_t row) const { return row * keys; }

  // A row's sum of dy * y less the gradient of its lse. Where no key is kept, lse is constant, and has none.
  template <class A>
  FUSEDOPS_HD A delta(A sum, int64_t b, int64_t position, int64_t head) const {
    const bool is_constant = !dlse.data || *lse.row<const A>(b, position, head) == -std::numeric_limits<A>::infinity();
    return is_constant ? sum : sum - *dlse.row<const A>(b, position, head);
  }

  // Where the elements of a sequence are in tensors: packed sequences have no dimension of their own.
  FUSEDOPS_HD int64_t batch_index(int64_t b) const { return offsets_q ? 0 : b; }

  // Key heads are shared by as many query heads each.
  FUSEDOPS_HD int key_head(int head) const { return head / group; }

  DType dtype;
  int64_t sequences;
  int queries, keys;  // of the longest sequence, or of all together if they are packed
  int heads, key_heads, group;
  int dim, dim_v;
  HeadRows q, k, v, y, lse;  // lse has one element a row
  HeadRows dy, dq, dk, dv;   // of the backward
  HeadRows dlse;             // null data: nothing flows back through lse
  size_t dy_zeros;           // bytes at the start of the workspace that are dy where none is given
  Band band;
  double scale, softcap;
  Dropout dropout;  // of the probabilities

  BroadcastMask mask;  // of rows (sequence, head, query)
  bool has_mask;
  const void* lengths;  // null: all keys are kept
  bool has_64_bit_lengths;
  const int32_t *offsets_q, *offsets_k;  // null: not packed. Ascending: the CPU refuses others, a GPU replaces them
  int packed_queries, packed_keys;

 private:
  // Lengths may be any numbers: on a GPU nothing has checked them.
  FUSEDOPS_HD int valid_keys(int64_t b) const {
    if (!lengths) return keys;
    const int64_t length =
        has_64_bit_lengths ? static_cast<const int64_t*>(lengths)[b] : static_cast<const int32_t*>(lengths)[b];
    return length < 0 ? 0 : length < keys ? static_cast<int>(length) : keys;
  }
};

}  // namespace fusedops
