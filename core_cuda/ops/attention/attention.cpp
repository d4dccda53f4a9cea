#include "ops/attention/attention.h"

#include <algorithm>

#include "core/declaration/numbers.h"
#include "ops/attention/attention_workspace.h"
#include "ops/elementwise/dropout.h"

namespace fusedops {
namespace {

// ---- Argument indices ----

struct Indices {
  std::string_view name;
  int q, k, v, seed, mask, lengths, query_offset, offsets_q, offsets_k, alibi, sinks, bias;
  int dy, y_input, lse_input, dlse;  // inputs of the backward
  int y, lse, dq, dk, dv, dsinks, dbias;
  AttributeIndex<bool> causal, need_dsinks, need_dbias;
  AttributeIndex<std::vector<double>> scale;
  AttributeIndex<int64_t> window, seq_dim;
  AttributeIndex<double> softcap, dropout;

  consteval Indices(const Signature& op)
      : name(op.name),
        q(input_of(op, "q")),
        k(input_of(op, "k")),
        v(input_of(op, "v")),
        seed(find_input(op, "seed")),
        mask(find_input(op, "mask")),
        lengths(find_input(op, "lengths")),
        query_offset(find_input(op, "query_offset")),
        offsets_q(find_input(op, "offsets_q")),
        offsets_k(find_input(op, "offsets_k")),
        alibi(find_input(op, "alibi")),
        sinks(find_input(op, "sinks")),
        bias(find_input(op, "bias")),
        dy(find_input(op, "dy")),
        y_input(find_input(op, "y")),
        lse_input(find_input(op, "lse")),
        dlse(find_input(op, "dlse")),
        y(find_output(op, "y")),
        lse(find_output(op, "lse")),
        dq(find_output(op, "dq")),
        dk(find_output(op, "dk")),
        dv(find_output(op, "dv")),
        dsinks(find_output(op, "dsinks")),
        dbias(find_output(op, "dbias")),
        causal(attribute_of<bool>(op, "causal")),
        need_dsinks(find_attribute<bool>(op, "need_dsinks")),
        need_dbias(find_attribute<bool>(op, "need_dbias")),
        scale(attribute_of<std::vector<double>>(op, "scale")),
        window(attribute_of<int64_t>(op, "window")),
        seq_dim(find_attribute<int64_t>(op, "seq_dim")),
        softcap(attribute_of<double>(op, "softcap")),
        dropout(find_attribute<double>(op, "dropout")) {
    has_only(op,
             {q, k, v, seed, mask, lengths, query_offset, offsets_q, offsets_k, alibi, sinks, bias, dy, y_input,
              lse_input, dlse},
             {y, lse, dq, dk, dv, dsinks, dbias},
             {causal.index, need_dsinks.index, need_dbias.index, scale.index, window.index, seq_dim.index,
              softcap.index, dropout.index});
  }

  bool packed() const { return offsets_q != kAbsent; }
  bool backward() const { return dy != kAbsent; }
};

constexpr Indices kIndices[] = {kAttention,       kAttentionLse,       kAttentionBackward,
                                kAttentionVarlen, kAttentionVarlenLse, kAttentionVarlenBackward};

const Indices& indices_of(const Operator& op) { return *std::ranges::find(kIndices, op.name, &Indices::name); }

// ---- Checks and shapes ----

class AttentionRule {
 public:
  explicit AttentionRule(Rule& rule)
      : rule_(rule), at_(indices_of(rule.op)), q_(rule.inputs[at_.q]), k_(rule.inputs[at_.k]), v_(rule.inputs[at_.v]) {}

  Status forward() {
    FUSEDOPS_TRY(check());
    rule_.outputs[at_.y] = y_shape();
    rule_.outputs[at_.lse] = lse_shape();
    return {};
  }

  Status backward() {
    FUSEDOPS_TRY(check());
    FUSEDOPS_TRY(is(at_.y_input, y_shape(), "that of attention's result"));
    FUSEDOPS_TRY(is(at_.dy, y_shape(), "that of attention's result"));
    FUSEDOPS_TRY(is(at_.lse_input, lse_shape(), "one number for each row of q"));
    FUSEDOPS_TRY(is(at_.dlse, lse_shape(), "one number for each row of q"));
    rule_.outputs[at_.dq] = q_;
    rule_.outputs[at_.dk] = k_;
    rule_.outputs[at_.dv] = v_;
    rule_.outputs[at_.dsinks] = rule_.gradient(at_.sinks, rule_.attributes[at_.need_dsinks], at_.q);
    if (!at_.packed()) rule_.outputs[at_.dbias] = rule_.gradient(at_.bias, rule_.attributes[at_.need_dbias], at_.q);
    return {};
  }

 private:
  Status check() {
    FUSEDOPS_TRY(rule_.floating(at_.q));
    FUSEDOPS_TRY(rule_.same_dtype(at_.k, at_.q));
    FUSEDOPS_TRY(rule_.same_dtype(at_.v, at_.q));
    find_positions();
    for (const int input : {at_.q, at_.k, at_.v}) FUSEDOPS_TRY(check_rank(input));
    for (const int input : {at_.q, at_.k, at_.v}) FUSEDOPS_TRY(check_sizes(input));
    FUSEDOPS_TRY(check_k());
    FUSEDOPS_TRY(check_v());
    FUSEDOPS_TRY(check_scale());
    for (const int input : {at_.alibi, at_.sinks}) FUSEDOPS_TRY(check_per_head(input));
    if (at_.packed()) return check_offsets();
    FUSEDOPS_TRY(check_dropout(rule_, at_.seed, at_.dropout));
    FUSEDOPS_TRY(check_mask());
    FUSEDOPS_TRY(check_bias());
    FUSEDOPS_TRY(check_per_sequence(at_.lengths));
    return check_per_sequence(at_.query_offset);
  }

  // Finds the dimensions of positions and heads, counted from the last one.
  void find_positions() {
    positions_ = at_.packed() ? -3 : static_cast<int>(rule_.attributes[at_.seq_dim]);
    heads_ = -5 - positions_;
  }

  Status check_rank(int input) const {
    const Shape& shape = rule_.inputs[input];
    if (!shape.ranked) return {};
    if (at_.packed() && shape.rank != 3)
      return rule_.must(input, "have 3 dimensions: positions, heads, features", "shape " + rule_.show(shape));
    if (shape.rank < 3) return rule_.must(input, "have at least 3 dimensions", "shape " + rule_.show(shape));
    return {};
  }

  static Dim& dim(Shape& shape, int from_last) { return shape.dims[shape.rank + from_last]; }
  Dim& features(Shape& shape) const { return dim(shape, -1); }
  Dim& positions(Shape& shape) const { return dim(shape, positions_); }
  Dim& heads(Shape& shape) const { return dim(shape, heads_); }

  Status check_sizes(int input) {
    Shape& shape = rule_.inputs[input];
    if (!shape.ranked) return {};
    if (features(shape) == 0 || features(shape) > kMaxFeatures)
      return rule_.must(input, "have 1 to " + std::to_string(kMaxFeatures) + " features in its last dimension",
                        "shape " + rule_.show(shape));
    if (positions(shape) > kMaxPositions)
      return rule_.must(input, "have at most 2^30 positions", "shape " + rule_.show(shape));
    return {};
  }

  // A shape with names for two dimensions, for error messages.
  std::string pattern(const Shape& shape, int free1, const char* name1, int free2, const char* name2) const {
    std::string text = "[";
    for (int i = 0; i < shape.rank; ++i) {
      const int from_last = i - shape.rank;
      text += i ? ", " : "";
      text += from_last == free1 ? name1 : from_last == free2 ? name2 : rule_.show(shape.dims[i]);
    }
    return text + "]";
  }

  // True if two shapes agree except in two dimensions, counted from the last one.
  bool is_same_except(Shape& a, Shape& b, int free1, int free2) const {
    bool equal = a.rank == b.rank;
    for (int i = 0; equal && i < a.rank; ++i) {
      const int from_last = i - a.rank;
      equal = from_last == free1 || from_last == free2 || rule_.same(a.dims[i], b.dims[i]);
    }
    return equal;
  }

  Status check_k() {
    if (!q_.ranked || !k_.ranked) return {};
    if (!is_same_except(q_, k_, positions_, heads_))
      return rule_.must(
          at_.k, "have shape " + pattern(q_, positions_, "S", heads_, "Hk") + " beside q of shape " + rule_.show(q_),
          rule_.show(k_));
    const Dim all = heads(q_), shared = heads(k_);
    if (all < 0 || shared < 0 || (shared == 0 ? all == 0 : all % shared == 0)) return {};
    return rule_.must(at_.k, "have a number of heads that divides q's, " + rule_.show(all), rule_.show(shared));
  }

  Status check_v() {
    if (!k_.ranked || !v_.ranked || is_same_except(k_, v_, -1, -1)) return {};
    return rule_.must(at_.v, "have shape " + pattern(k_, -1, "Dv", -1, "Dv") + " beside k of shape " + rule_.show(k_),
                      rule_.show(v_));
  }

  Status check_scale() const {
    const size_t count = rule_.attributes[at_.scale].size();
    return count <= 1 ? Status() : must_be(rule_, "scale", "one number or none", std::to_string(count) + " numbers");
  }

  Status check_mask() const {
    if (!rule_.inputs[at_.mask].present) return {};
    FUSEDOPS_TRY(check_mask_dtype(rule_, at_.mask));
    return check_broadcast_to_scores(at_.mask);
  }

  Status check_bias() const {
    if (!rule_.inputs[at_.bias].present) return {};
    FUSEDOPS_TRY(check_term_dtype(at_.bias));
    return check_broadcast_to_scores(at_.bias);
  }

  Status check_broadcast_to_scores(int input) const {
    if (!q_.ranked || !k_.ranked) return {};
    Shape scores = lse_shape();
    scores.dims[scores.rank++] = k_.dims[k_.rank + positions_];
    return check_broadcast(rule_, input, scores, rule_.show(scores) + ", the heads, queries and keys");
  }

  // q's dtype, or float32 beside 16 bits.
  Status check_term_dtype(int input) const {
    return q_.dtype == DType::f32 ? rule_.same_dtype(input, at_.q) : rule_.same_dtype_or_f32(input, at_.q);
  }

  Status check_per_head(int input) {
    Shape& numbers = rule_.inputs[input];
    if (!numbers.present) return {};
    FUSEDOPS_TRY(check_term_dtype(input));
    if (!numbers.ranked) return {};
    if (numbers.rank == 1 && (!q_.ranked || rule_.same(heads(q_), numbers.dims[0]))) return {};
    const std::string expected = q_.ranked ? rule_.show(heads(q_)) : "?";
    return rule_.must(input, "have shape [" + expected + "], one number for each head of q", rule_.show(numbers));
  }

  Status check_per_sequence(int input) {
    Shape& integers = rule_.inputs[input];
    if (!integers.present) return {};
    if (integers.dtype != DType::i32 && integers.dtype != DType::i64)
      return rule_.must(input, "be int32 or int64", name_of(integers.dtype));
    if (!integers.ranked || !q_.ranked) return {};
    Shape leading = q_;
    leading.rank -= 3;
    bool equal = integers.rank == leading.rank;
    for (int i = 0; equal && i < leading.rank; ++i) equal = rule_.same(q_.dims[i], integers.dims[i]);
    if (equal) return {};
    return rule_.must(input, "have shape " + rule_.show(leading) + ", q's dimensions before its last three",
                      rule_.show(integers));
  }

  Status check_offsets() {
    for (const int input : {at_.offsets_q, at_.offsets_k}) {
      const Shape& offsets = rule_.inputs[input];
      if (offsets.dtype != DType::i32) return rule_.must(input, "be int32", name_of(offsets.dtype));
      if (offsets.ranked && (offsets.rank != 1 || offsets.dims[0] == 0))
        return rule_.must(input, "have shape [B + 1], for B sequences", rule_.show(offsets));
    }
    return rule_.same_as(at_.offsets_k, at_.offsets_q);
  }

  Shape y_shape() const {
    Shape y = q_;
    y.ranked = q_.ranked && v_.ranked;
    if (y.ranked) dim(y, -1) = v_.dims[v_.rank - 1];
    return y;
  }

  // Leading dimensions, heads, queries.
  Shape lse_shape() const {
    Shape lse = q_;
    lse.dtype = compute_dtype(q_.dtype);
    if (!q_.ranked) return lse;
    lse.rank -= 1;
    dim(lse, -2) = q_.dims[q_.rank + heads_];
    dim(lse, -1) = q_.dims[q_.rank + positions_];
    return lse;
  }

  Status is(int input, Shape expected, const char* what) const {
    Shape& got = rule_.inputs[input];
    if (!got.present) return {};
    if (got.dtype != expected.dtype)
      return rule_.must(input, std::string("be ") + name_of(expected.dtype), name_of(got.dtype));
    if (!got.ranked || !expected.ranked || is_same_except(expected, got, 0, 0)) return {};
    return rule_.must(input, "have shape " + rule_.show(expected) + ", " + what, rule_.show(got));
  }

  Rule& rule_;
  const Indices& at_;
  Shape &q_, &k_, &v_;
  int positions_ = 0, heads_ = 0;
};

Status forward_rule(Rule& rule) { return AttentionRule(rule).forward(); }
Status backward_rule(Rule& rule) { return AttentionRule(rule).backward(); }

// ---- Workspaces ----

size_t forward_workspace(const Call& call) {
  return call.context.cuda ? cuda::attention_workspace(Attention::of(call)) : 0;
}

size_t backward_workspace(const Call& call) {
  const Attention attention = Attention::of(call);
  return attention.dy_zeros + (call.context.cuda ? cuda::attention_backward_workspace(attention) : 0);
}

// ---- The call ----

HeadRows head_rows(const View& view, bool heads_first) {
  const Heads rows = as_heads(view);
  return {view.data, rows.strides[0], rows.strides[heads_first ? 2 : 1], rows.strides[heads_first ? 1 : 2]};
}

// lse is contiguous: [sequences, heads, queries], or [heads, queries] of packed sequences.
HeadRows lse_rows(void* data, int64_t heads, int64_t queries, bool packed) {
  return {data, packed ? 0 : heads * queries, 1, queries};
}

// A mask or a bias, whose rows are those of the scores.
template <class Broadcast>
Broadcast broadcast_to_scores(const View& tensor, const View& q, const Attention& a) {
  int64_t sizes[kMaxRank];
  std::copy_n(q.sizes, q.rank - 3, sizes);
  sizes[q.rank - 3] = a.heads, sizes[q.rank - 2] = a.queries, sizes[q.rank - 1] = a.keys;
  View scores;
  scores.rank = q.rank, scores.sizes = sizes;
  return Broadcast(tensor, scores);
}

// Replaces an absent upstream gradient by zeros at the start of the workspace.
void add_zeros(void* workspace, bool packed, Attention& a) {
  constexpr size_t kAlignment = 128;
  const int64_t position = int64_t(a.heads) * a.dim_v, sequence = a.queries * position;
  a.dy = {workspace, packed ? 0 : sequence, position, a.dim_v};
  a.dy_zeros = (a.sequences * sequence * size_of(a.dtype) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Attention Attention::of(const Call& call) {
  const Indices& at = indices_of(call.op);
  const View &q = *call.inputs[at.q], &k = *call.inputs[at.k], &v = *call.inputs[at.v];
  const bool heads_first = !at.packed() && call.attributes[at.seq_dim] == -2;
  const Heads of_q = as_heads(q), of_k = as_heads(k);
  const auto given = [&](int input) { return input == kAbsent ? nullptr : call.inputs[input]; };
  const auto output = [&](int index) {
    return index == kAbsent ? HeadRows{} : head_rows(call.outputs[index], heads_first);
  };

  Attention a{};
  a.dtype = q.dtype;
  a.sequences = of_q.sizes[0];
  a.queries = static_cast<int>(of_q.sizes[heads_first ? 2 : 1]);
  a.keys = static_cast<int>(of_k.sizes[heads_first ? 2 : 1]);
  a.heads = static_cast<int>(of_q.sizes[heads_first ? 1 : 2]);
  a.key_heads = static_cast<int>(of_k.sizes[heads_first ? 1 : 2]);
  a.group = a.key_heads ? a.heads / a.key_heads : 0;
  a.dim = static_cast<int>(of_q.size);
  a.dim_v = static_cast<int>(v.sizes[v.rank - 1]);
  a.q = head_rows(q, heads_first), a.k = head_rows(k, heads_first), a.v = head_rows(v, heads_first);
  if (at.backward()) {
    a.y = head_rows(*call.inputs[at.y_input], heads_first);
    a.lse = lse_rows(call.inputs[at.lse_input]->data, a.heads, a.queries, at.packed());
    if (const View* dlse = given(at.dlse)) a.dlse = lse_rows(dlse->data, a.heads, a.queries, at.packed());
    if (const View* dy = given(at.dy))
      a.dy = head_rows(*dy, heads_first);
    else
      add_zeros(call.workspace, at.packed(), a);
  } else {
    a.y = output(at.y);
    a.lse = lse_rows(call.outputs[at.lse].data, a.heads, a.queries, at.packed());
  }
  a.dq = output(at.dq), a.dk = output(at.dk), a.dv = output(at.dv);

  // A window that covers all positions is dropped, so that sums with it fit into 32 bits.
  const int64_t window = call.attributes[at.window];
  a.band = {call.attributes[at.causal], window < int64_t(a.queries) + a.keys ? static_cast<int>(window) : 0};
  const std::vector<double>& scale = call.attributes[at.scale];
  a.scale = scale.empty() ? 1 / std::sqrt(double(a.dim)) : scale[0];
  a.softcap = call.attributes[at.softcap];
  if (!at.packed()) a.dropout = Dropout(call, at.seed, call.attributes[at.dropout]);

  if (const View* mask = given(at.mask)) {
    a.has_mask = true;
    a.mask = broadcast_to_scores<BroadcastMask>(*mask, q, a);
  }
  if (const View* bias = given(at.bias)) {
    a.bias = broadcast_to_scores<BroadcastBias>(*bias, q, a);
    a.bias_row = a.has_scores() && a.queries > 1 ? a.bias.place(1) - a.bias.place(0) : 0;
    if (call.attributes.or_zero(at.need_dbias)) a.dbias = call.outputs[at.dbias].data;
  }
  const auto per_sequence = [&](int input) {
    const View* view = given(input);
    return view ? PerSequence{view->data, view->dtype == DType::i64} : PerSequence{};
  };
  a.lengths = per_sequence(at.lengths), a.query_offset = per_sequence(at.query_offset);
  a.alibi = parameter(call, at.alibi), a.sinks = parameter(call, at.sinks);
  if (a.sinks.data && call.attributes.or_zero(at.need_dsinks)) a.dsinks = call.outputs[at.dsinks].data;
  if (at.packed()) {
    a.offsets_q = call.input<int32_t>(at.offsets_q), a.offsets_k = call.input<int32_t>(at.offsets_k);
    a.packed_queries = a.queries, a.packed_keys = a.keys;
    a.sequences = call.inputs[at.offsets_q]->sizes[0] - 1;
  }
  return a;
}

namespace {

// `dlse`: the name of the gradient of lse, or null if lse is only saved.
Step attention_step(const char* dlse) {
  return {.op = "attention_backward",
          .inputs = {"dy", "q", "k", "v", "y", "lse", "mask", "lengths", "seed", dlse, "query_offset", "alibi", "sinks",
                     "bias"},
          .gradients = {{"q", "dq"}, {"k", "dk"}, {"v", "dv"}, {"sinks", "dsinks"}, {"bias", "dbias"}}};
}

Step varlen_step(const char* dlse) {
  return {.op = "attention_varlen_backward",
          .inputs = {"dy", "q", "k", "v", "y", "lse", "offsets_q", "offsets_k", dlse, "alibi", "sinks"},
          .gradients = {{"q", "dq"}, {"k", "dk"}, {"v", "dv"}, {"sinks", "dsinks"}}};
}

Implementation forward(const Step& step) {
  return {.derivative = {step},
          .rule = forward_rule,
          .workspace = forward_workspace,
          .cpu = attention_cpu,
          .cuda = attention_cuda};
}

Implementation backward() {
  return {.rule = backward_rule,
          .workspace = backward_workspace,
          .cpu = attention_backward_cpu,
          .cuda = attention_backward_cuda};
}

}  // namespace

Operator attention() { return {kAttention, forward(attention_step(nullptr))}; }
Operator attention_lse() { return {kAttentionLse, forward(attention_step("dlse"))}; }
Operator attention_varlen() { return {kAttentionVarlen, forward(varlen_step(nullptr))}; }
Operator attention_varlen_lse() { return {kAttentionVarlenLse, forward(varlen_step("dlse"))}; }
Operator attention_backward() { return {kAttentionBackward, backward()}; }
Operator attention_varlen_backward() { return {kAttentionVarlenBackward, backward()}; }

}  // namespace fusedops
