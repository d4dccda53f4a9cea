// The forward of attention on the CPU, on panels (attention_cpu.h).
//
//   chunks of rows of a head group   the items of parallel_for: their queries are packed once
//     blocks of kKeys keys           k and v are packed, for the second-level cache
//       panels of rows               scores = k q^T; online softmax; y^T = y^T * alpha + v^T p
//
// Head groups of few rows, as in decoding, are computed row by row, and their keys are divided into splits:
//
//   splits of keys of a head group   the items of parallel_for: partial results
//     blocks of kKeys keys           scores = q k^T; online softmax; y = y * alpha + p v
//   head groups                      partial results are merged in the order of the splits
#include "ops/attention/attention_cpu.h"

#include <numeric>

#include "core/cpu/offsets.h"
#include "ops/attention/attention_decode_cpu.h"

namespace fusedops {
namespace cpu {
namespace {

constexpr int64_t kRows = 288;      // rows of a chunk, a multiple of the columns of every micro-kernel
constexpr int64_t kDecodeRows = 8;  // up to this many rows of a head group, panels are slower
constexpr int kSplitKeys = 4 * kKeys;

// Running row statistics of a panel, one per lane.
template <class A>
struct Running {
  A max[kMaxNr], sum[kMaxNr];
};

// Replaces products [keys, lanes] by exponentials and adds them to `running`. The caller rescales y by alpha. `terms`
// and `keep` may be null. If the lanes are of one row, they have one maximum.
template <class A, int kLanes, bool kOneRow = false>
[[gnu::always_inline]] inline void online_softmax_step(const ScoreScale<A>& logits, int keys, const A* terms,
                                                       const uint8_t* keep, A* scores, Running<A>& running, A* alpha) {
  constexpr A kNegInf = -std::numeric_limits<A>::infinity();
  const int count = keys * kLanes;
  if (logits.is_capped()) {
    const A cap = logits.cap, inner = logits.inner;
#pragma GCC ivdep
    for (int i = 0; i < count; ++i) scores[i] = cap * activations::tanh_(inner * scores[i]).value;
  }
  if (terms) {
    const A scale = logits.is_capped() ? A(1) : logits.inner;
#pragma GCC ivdep
    for (int i = 0; i < count; ++i) scores[i] = scale * scores[i] + terms[i];
  }
  if (keep) {
#pragma GCC ivdep
    for (int i = 0; i < count; ++i) scores[i] = kept_or(scores[i], kNegInf, keep[i]);
  }
  auto max = Lanes<A, kLanes>::from(running.max);
  for (int j = 0; j < keys; ++j) max.raise(scores + j * kLanes);
  A now[kLanes], base[kLanes];
  max.to(now);
  if constexpr (kOneRow) std::fill_n(now, kLanes, *std::max_element(now, now + kLanes));
  const A factor = logits.unit * A(kLog2E);
  for (int lane = 0; lane < kLanes; ++lane) {
    base[lane] = now[lane] == kNegInf ? A(0) : now[lane];
    alpha[lane] = now[lane] == running.max[lane] ? A(1) : exp2_or_zero((running.max[lane] - base[lane]) * factor);
    running.max[lane] = now[lane];
    running.sum[lane] *= alpha[lane];
  }
  for (int j = 0; j < keys; ++j)
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane)
      scores[j * kLanes + lane] = exp2_or_zero((scores[j * kLanes + lane] - base[lane]) * factor);
  Lanes<A, kLanes> sum{};
  for (int j = 0; j < keys; ++j) sum.add(scores + j * kLanes);
  sum.to(now);
  for (int lane = 0; lane < kLanes; ++lane) running.sum[lane] += now[lane];
}

// Divides a row of y by the sum of its exponentials and stores it, and lse.
template <class T, class A>
void store_row(const HeadGroup& group, int64_t row, const A* y, int stride, const ScoreScale<A>& logits, A max, A sum) {
  const Attention& call = group.call;
  max *= logits.unit;
  const A share = call.sinks.data ? add_sink(call.sinks.get<T>(group.head(row)), max, sum) : A(1);
  A lse = max + std::log(sum);
  A factor = share * static_cast<A>(call.dropout.scale) / sum;
  if (sum == 0) {  // no visible key, or only scores of -inf
    factor = group.has_visible_key<T>(row) ? std::numeric_limits<A>::quiet_NaN() : A(0);
    lse = -std::numeric_limits<A>::infinity();
  }
  *group.of_query<A>(call.lse, row) = lse;
  A wide[kMaxFeatures];
  for (int d = 0; d < call.dim_v; ++d) wide[d] = y[d * stride] * factor;
  T* to = group.of_query<T>(call.y, row);
  if constexpr (std::is_same_v<T, A>)
    std::copy_n(wide, call.dim_v, to);
  else
    narrow(wide, to, call.dim_v);
}

bool is_decode(const HeadGroup& group) { return 0 < group.rows() && group.rows() <= kDecodeRows; }

// True if is_decode() is `expected` for some sequence. Only packed sequences differ.
bool has_sequence(const Attention& call, bool expected) {
  bool found = false;
  for (int64_t b = 0; b < (call.offsets_q ? call.sequences : std::min<int64_t>(1, call.sequences)); ++b)
    found |= is_decode(HeadGroup(call, b, 0)) == expected;
  return found;
}

// Head groups of many rows.
template <class T>
class Forward {
 public:
  using A = compute_t<T>;

  explicit Forward(const Attention& call)
      : call_(call),
        logits_(call),
        kernel_(micro_kernel<A>(int64_t(call.queries) * call.group)),
        chunks_(Chunks::of_rows(call, kRows)),
        dim_v_(rounded_up(call.dim_v, kernel_.mr)) {}

  int64_t items() const { return chunks_.count(); }

  int64_t nanoseconds_per_item() const {
    constexpr int64_t kMultiplyAdds = 256 / sizeof(A);  // per nanosecond
    const int64_t rows = std::min(int64_t(call_.queries) * call_.group, kRows);
    return 100 + rows * call_.keys * (call_.dim + call_.dim_v + 16) / kMultiplyAdds;
  }

  void compute(int64_t begin, int64_t end) const {
    ScratchArena<A> memory;
    const int64_t keys = rounded_up(kKeys, kernel_.mr);
    const Pieces at{memory.piece(kRows * call_.dim), memory.piece(kRows * dim_v_), memory.piece(keys * call_.dim),
                    memory.piece(dim_v_ * kKeys), memory.piece(keys * kernel_.nr)};
    memory.allocate();
    const Buffers buffers{memory[at.q], memory[at.y], memory[at.k], memory[at.v], memory[at.scores]};
    for (int64_t i = begin; i < end; ++i)
      chunks_.visit(i, [&](const HeadGroup& group, int64_t first, int64_t last) {
        if (!is_decode(group)) compute_rows(group, first, last, buffers);
      });
  }

 private:
  struct Pieces {
    int64_t q, y, k, v, scores;
  };
  struct Buffers {
    A *q, *y;   // panels of rows: [dim, nr] and [dim_v, nr]
    A *k, *v;   // panels of keys [dim, mr] and of features [keys, mr]
    A* scores;  // [keys, nr]
  };

  void compute_rows(const HeadGroup& group, int64_t first, int64_t last, const Buffers& to) const {
    const int nr = kernel_.nr;
    const int64_t rows = last - first;
    const Range keys = call_.band.keys(group.sequence, group.queries(first, last));
    Running<A> running[kRows / 4];
    for (int64_t row = 0, panel = 0; row < rows; row += nr, ++panel) {
      std::fill_n(running[panel].max, kMaxNr, -std::numeric_limits<A>::infinity());
      std::fill_n(running[panel].sum, kMaxNr, A(0));
    }
    std::fill_n(to.y, rounded_up(rows, nr) * dim_v_, A(0));
    if (!keys.is_empty()) {
      pack_rows([&](int64_t row) { return group.of_query<const T>(call_.q, first + row); }, rows, call_.dim, to.q, nr);
      if (logits_.sign != 1)
        for (int64_t i = 0; i < rounded_up(rows, nr) * call_.dim; ++i) to.q[i] *= logits_.sign;
    }
    for (int key = keys.begin / kKeys * kKeys; key < keys.end; key += kKeys) {
      const int count = std::min(kKeys, keys.end - key);
      pack_rows([&](int64_t j) { return group.of_key<const T>(call_.k, key + static_cast<int>(j)); }, count, call_.dim,
                to.k, kernel_.mr);
      pack_columns([&](int64_t j) { return group.of_key<const T>(call_.v, key + static_cast<int>(j)); }, count, count,
                   call_.dim_v, to.v, kernel_.mr);
      for (int64_t row = 0, panel = 0; row < rows; row += nr, ++panel)
        add_block(group, first + row, static_cast<int>(std::min<int64_t>(nr, rows - row)), key, count,
                  to.q + row * call_.dim, to, to.y + row * dim_v_, running[panel]);
    }
    for (int64_t row = 0, panel = 0; row < rows; row += nr, ++panel)
      for (int lane = 0; lane < std::min<int64_t>(nr, rows - row); ++lane)
        store_row<T>(group, first + row + lane, to.y + row * dim_v_ + lane, nr, logits_, running[panel].max[lane],
                     running[panel].sum[lane]);
  }

  // Adds one block of keys to one panel of rows. `packed`: number of keys in the buffers.
  void add_block(const HeadGroup& group, int64_t row, int rows, int key, int packed, const A* q, const Buffers& from,
                 A* y, Running<A>& running) const {
    const Range queries = group.queries(row, row + rows), seen = call_.band.keys(group.sequence, queries);
    const int count = std::min(packed, seen.end - key);
    if (count <= 0 || seen.begin >= key + count) return;
    const Range visible_to_all = call_.band.keys_of_all(group.sequence, queries);
    const bool is_masked = call_.can_hide() || key < visible_to_all.begin || key + count > visible_to_all.end;
    uint8_t keep[kKeys * kMaxNr];
    A memory[kKeys * kMaxNr];
    const A* const terms = call_.has_terms() ? memory : nullptr;
    if (terms) find_terms<T>(group, row, rows, key, count, kernel_.nr, memory);
    if (is_masked && !find_visible(group, row, rows, key, count, kernel_.nr, terms, keep)) return;
    const int64_t padded = rounded_up(count, kernel_.mr);
    multiply_panels(kernel_, padded, kernel_.nr, call_.dim, from.k, q, from.scores, kernel_.nr, false);
    with_lanes<A>(kernel_.nr, [&](auto lanes) {
      A alpha[kMaxNr];
      online_softmax_step<A, lanes>(logits_, count, terms, is_masked ? keep : nullptr, from.scores, running, alpha);
      if (std::all_of(alpha, alpha + lanes, [](A a) { return a == 1; })) return;
      for (int64_t d = 0; d < dim_v_; ++d)
        for (int lane = 0; lane < lanes; ++lane) y[d * lanes + lane] *= alpha[lane];
    });
    if (call_.dropout.seed) {
      draw_dropout(group, row, rows, key, count, kernel_.nr, keep);
      for (int i = 0; i < count * kernel_.nr; ++i) from.scores[i] = kept_or(from.scores[i], A(0), keep[i]);
    }
    multiply_block(count, packed, from.v, from.scores, y);
  }

  // y^T [dim_v, nr] += v^T [dim_v, keys] @ p [keys, nr], with panels of `packed` keys.
  void multiply_block(int count, int packed, const A* v, const A* p, A* y) const {
    for (int64_t d = 0; d < dim_v_; d += kernel_.mr)
      kernel_.multiply(count, v + d * packed, p, y + d * kernel_.nr, kernel_.nr, true);
  }

  const Attention& call_;
  const ScoreScale<A> logits_;
  const MicroKernel<A> kernel_;
  const Chunks chunks_;
  const int64_t dim_v_;  // padded
};

// Head groups of few rows.
template <class T>
class Decode {
 public:
  using A = compute_t<T>;

  explicit Decode(const Attention& call)
      : call_(call),
        logits_(call),
        splits_(Chunks::of_keys(call, kSplitKeys)),
        pitch_(2 + call.dim_v),
        partials_(scratch<A>(items() * kDecodeRows * pitch_)) {}

  int64_t items() const { return splits_.count(); }

  int64_t nanoseconds_per_item() const {
    constexpr int64_t kBytes = 8;  // per nanosecond
    return 100 + std::min(call_.keys, kSplitKeys) * (call_.dim + call_.dim_v) * sizeof(T) / kBytes;
  }

  void compute(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t split = splits_.across_heads(i);
      splits_.visit(split, [&](const HeadGroup& group, int64_t first, int64_t last) {
        if (is_decode(group)) run_widest([&] { compute_split(group, first, last, split); });
      });
    }
  }

  void merge(const Context& context) const {
    const int64_t groups = call_.sequences * call_.key_heads, cost = 20 * kDecodeRows + call_.dim_v;
    context.parallel_for(groups, cost, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const HeadGroup group(call_, i / call_.key_heads, static_cast<int>(i % call_.key_heads));
        for (int64_t row = 0; is_decode(group) && row < group.rows(); ++row) merge_row(group, row);
      }
    });
  }

 private:
  // The maximum, the sum of exponentials and y of a row over a split.
  A* partial(int64_t split, int64_t row) const { return partials_.get() + (split * kDecodeRows + row) * pitch_; }

  Range visible_keys(const HeadGroup& group) const {
    return call_.band.keys(group.sequence, group.queries(0, group.rows()));
  }

  // Calls body(rows, j, steps) for `count` rows from `key` on: those from key + j on, with zeros up to `steps`.
  template <class Body>
  [[gnu::always_inline]] static void each_rows(RowReader<T>& reader, const HeadGroup& group, const HeadRows& tensor,
                                               int size, int key, int count, Body body) {
    const T* const first = group.of_key<const T>(tensor, key);
    const int64_t pitch = tensor.position;
    for (int j = 0; j < count; j += kWideKeys) {
      const int n = std::min(kWideKeys, count - j);
      body(reader.read(first + j * pitch, pitch, n, size), j, static_cast<int>(rounded_up(n, kStepKeys)));
    }
  }

  void compute_split(const HeadGroup& group, int64_t begin, int64_t end, int64_t split) const {
    constexpr int kLanes = kVectorWidth<A>;
    const int rows = static_cast<int>(group.rows());
    const Range seen = visible_keys(group);
    const Range keys{std::max(static_cast<int>(begin), seen.begin), std::min(static_cast<int>(end), seen.end)};
    if (keys.is_empty()) return;
    A q[kDecodeRows][kMaxFeatures], scores[kDecodeRows][kKeys];
    Running<A> running[kDecodeRows];
    for (int row = 0; row < rows; ++row) {
      copy_widened(group.of_query<const T>(call_.q, row), q[row], call_.dim);
      std::fill(q[row] + call_.dim, q[row] + rounded_up(call_.dim, kLanes), A(0));
      for (int d = 0; d < call_.dim; ++d) q[row][d] *= logits_.sign;
      std::fill_n(running[row].max, kLanes, -std::numeric_limits<A>::infinity());
      std::fill_n(running[row].sum, kLanes, A(0));
      std::fill_n(partial(split, row), pitch_, A(0));
    }
    RowReader<T> reader;
    for (int key = keys.begin; key < keys.end; key += kKeys) {
      const int count = std::min(kKeys, keys.end - key);
      each_rows(reader, group, call_.k, call_.dim, key, count, [&](const WideRows<A>& rows_of, int j, int steps) {
        for (int row = 0; row < rows; ++row)
          for (int i = 0; i < steps; i += kStepKeys)
            dot_products(q[row], {rows_of.first + i * rows_of.pitch, rows_of.pitch}, call_.dim, scores[row] + j + i);
      });
      for (int row = 0; row < rows; ++row)
        soften_row(group, row, key, count, scores[row], running[row], partial(split, row) + 2);
      each_rows(reader, group, call_.v, call_.dim_v, key, count, [&](const WideRows<A>& values, int j, int steps) {
        for (int row = 0; row < rows; ++row)
          add_products(scores[row] + j, values, steps, call_.dim_v, partial(split, row) + 2);
      });
    }
    for (int row = 0; row < rows; ++row) {
      partial(split, row)[0] = running[row].max[0];
      partial(split, row)[1] = std::accumulate(running[row].sum, running[row].sum + kLanes, A(0));
    }
  }

  // Replaces the scores of `count` keys, and those up to a whole step, by probabilities.
  [[gnu::always_inline]] void soften_row(const HeadGroup& group, int row, int key, int count, A* scores,
                                         Running<A>& running, A* y) const {
    constexpr int kLanes = kVectorWidth<A>;
    const int padded = static_cast<int>(rounded_up(count, kLanes));
    const Range visible = call_.band.keys(group.sequence, group.query(row));
    uint8_t keep[kKeys] = {};
    A alpha[kLanes];
    // A split whose first keys a window hides may end within a vector, whose other lanes are no keys.
    const bool is_masked = call_.can_hide() || key < visible.begin || key + padded > visible.end || count < padded;
    A memory[kKeys];
    const A* const terms = call_.has_terms() ? memory : nullptr;
    if (terms) find_terms<T>(group, row, 1, key, padded, 1, memory);
    if (is_masked && !find_visible(group, row, 1, key, count, 1, terms, keep)) {
      std::fill_n(scores, padded, A(0));
      return;
    }
    online_softmax_step<A, kLanes, /*kOneRow=*/true>(logits_, padded / kLanes, terms, is_masked ? keep : nullptr,
                                                     scores, running, alpha);
    if (alpha[0] != 1)
      for (int d = 0; d < call_.dim_v; ++d) y[d] *= alpha[0];
    if (!call_.dropout.seed) return;
    draw_dropout(group, row, 1, key, count, 1, keep);
    for (int j = 0; j < count; ++j) scores[j] = kept_or(scores[j], A(0), keep[j]);
  }

  void merge_row(const HeadGroup& group, int64_t row) const {
    constexpr A kNegInf = -std::numeric_limits<A>::infinity();
    const A factor = logits_.unit * A(kLog2E);
    const Range seen = visible_keys(group);
    const int64_t first = splits_.first(group.b, group.key_head);
    const int64_t begin = first + seen.begin / kSplitKeys;
    const int64_t end = seen.is_empty() ? begin : first + (seen.end + kSplitKeys - 1) / kSplitKeys;
    A y[kMaxFeatures] = {}, max = kNegInf, sum = 0;
    for (int64_t split = begin; split < end; ++split) max = std::max(max, partial(split, row)[0]);
    const A base = max == kNegInf ? A(0) : max;
    for (int64_t split = begin; split < end; ++split) {
      const A* const of_split = partial(split, row);
      const A alpha = of_split[0] == max ? A(1) : exp2_or_zero((of_split[0] - base) * factor);
      sum += alpha * of_split[1];
      for (int d = 0; d < call_.dim_v; ++d) y[d] += alpha * of_split[2 + d];
    }
    store_row<T>(group, row, y, 1, logits_, max, sum);
  }

  const Attention& call_;
  const ScoreScale<A> logits_;
  const Chunks splits_;
  const int64_t pitch_;
  const Scratch<A> partials_;
};

Status check_offsets(const char* op, const char* name, const int32_t* offsets, int64_t sequences, int size) {
  FUSEDOPS_TRY(check_ascending(op, name, offsets, sequences));
  if (offsets[sequences] == size) return {};
  return offset_error(op, name, "end with the number of positions, " + std::to_string(size), offsets, sequences);
}

Status check_up_to_keys(const Attention& call, const char* op, const char* name, const PerSequence& integers) {
  for (int64_t b = 0; integers.data && b < call.sequences; ++b) {
    const int64_t got = integers.at(b);
    if (got < 0 || got > call.keys)
      return Status::error("fusedops.", op, ": ", name, " must be in [0, ", std::to_string(call.keys),
                           "], the number of keys; got ", std::to_string(got), " for sequence ", std::to_string(b));
  }
  return {};
}

}  // namespace

Status check_sequences(const Attention& call, const char* op) {
  if (call.offsets_q) {
    FUSEDOPS_TRY(check_offsets(op, "offsets_q", call.offsets_q, call.sequences, call.packed_queries));
    return check_offsets(op, "offsets_k", call.offsets_k, call.sequences, call.packed_keys);
  }
  FUSEDOPS_TRY(check_up_to_keys(call, op, "lengths", call.lengths));
  return check_up_to_keys(call, op, "query_offset", call.query_offset);
}

}  // namespace cpu

Status attention_cpu(const Call& arguments) {
  const Attention call = Attention::of(arguments);
  FUSEDOPS_TRY(cpu::check_sequences(call, public_name(arguments.op)));
  return dispatch(call.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (cpu::has_sequence(call, /*expected=*/false)) cpu::run_tasks(cpu::Forward<T>(call), arguments);
    if (cpu::has_sequence(call, /*expected=*/true)) {
      const cpu::Decode<T> decode(call);
      cpu::run_tasks(decode, arguments);
      decode.merge(arguments.context);
    }
    return Status();
  });
}

}  // namespace fusedops
