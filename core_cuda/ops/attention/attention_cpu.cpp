// The forward of attention on the CPU, on panels (attention_cpu.h).
//
//   chunks of rows of a head group   the items of parallel_for: their queries are packed once
//     blocks of kKeys keys           k and v are packed, for the second-level cache
//       panels of rows               scores = k q^T; online softmax; y^T = y^T * alpha + v^T p
#include "ops/attention/attention_cpu.h"

namespace fusedops {
namespace cpu {
namespace {

constexpr int64_t kRows = 288;  // rows of a chunk, a multiple of the columns of every micro-kernel

// Running row statistics of a panel, one per lane.
template <class A>
struct Running {
  A max[kMaxNr], sum[kMaxNr];
};

// Replaces products [keys, lanes] by exponentials and adds them to `running`. The caller rescales y by alpha. `bias`
// and `keep` may be null.
template <class A, int kLanes>
[[gnu::always_inline]] inline void online_softmax_step(const ScoreScale<A>& logits, int keys, const A* bias,
                                                       const uint8_t* keep, A* scores, Running<A>& running, A* alpha) {
  constexpr A kNegInf = -std::numeric_limits<A>::infinity();
  const int count = keys * kLanes;
  if (logits.is_capped()) {
    const A cap = logits.cap, inner = logits.inner;
#pragma GCC ivdep
    for (int i = 0; i < count; ++i) scores[i] = cap * activations::tanh_(inner * scores[i]).value;
  }
  if (bias) {
    const A scale = logits.is_capped() ? A(1) : logits.inner;
#pragma GCC ivdep
    for (int i = 0; i < count; ++i) scores[i] = scale * scores[i] + bias[i];
  }
  if (keep) {
#pragma GCC ivdep
    for (int i = 0; i < count; ++i) scores[i] = kept_or(scores[i], kNegInf, keep[i]);
  }
  auto max = Lanes<A, kLanes>::from(running.max);
  for (int j = 0; j < keys; ++j) max.raise(scores + j * kLanes);
  A now[kLanes], base[kLanes];
  max.to(now);
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

template <class T>
class Forward {
 public:
  using A = compute_t<T>;

  explicit Forward(const Attention& call)
      : call_(call),
        logits_(call),
        kernel_(micro_kernel<A>(int64_t(call.queries) * call.group)),
        chunks_(call, kRows),
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
      chunks_.visit(
          i, [&](const HeadGroup& group, int64_t first, int64_t last) { compute_rows(group, first, last, buffers); });
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
        finish(group, first + row + lane, to.y + row * dim_v_ + lane, running[panel].max[lane],
               running[panel].sum[lane]);
  }

  // Adds one block of keys to one panel of rows. `packed`: number of keys in the buffers.
  void add_block(const HeadGroup& group, int64_t row, int rows, int key, int packed, const A* q, const Buffers& from,
                 A* y, Running<A>& running) const {
    const Range queries = group.queries(row, row + rows), seen = call_.band.keys(group.sequence, queries);
    const int count = std::min(packed, seen.end - key);
    if (count <= 0 || seen.begin >= key + count) return;
    const Range visible_to_all = call_.band.keys_of_all(group.sequence, queries);
    const bool is_masked = call_.has_mask || key < visible_to_all.begin || key + count > visible_to_all.end;
    uint8_t keep[kKeys * kMaxNr];
    if (is_masked && !find_visible(group, row, rows, key, count, kernel_.nr, keep)) return;
    A bias[kKeys * kMaxNr];
    const bool has_bias = call_.has_bias();
    if (has_bias) find_bias<T>(group, row, rows, key, count, kernel_.nr, bias);
    const int64_t padded = rounded_up(count, kernel_.mr);
    multiply_panels(kernel_, padded, kernel_.nr, call_.dim, from.k, q, from.scores, kernel_.nr, false);
    with_lanes<A>(kernel_.nr, [&](auto lanes) {
      A alpha[kMaxNr];
      online_softmax_step<A, lanes>(logits_, count, has_bias ? bias : nullptr, is_masked ? keep : nullptr, from.scores,
                                    running, alpha);
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

  // Stores a row. y is a column of its panel.
  void finish(const HeadGroup& group, int64_t row, const A* y, A max, A sum) const {
    max *= logits_.unit;
    const A share = call_.sinks.data ? add_sink(call_.sinks.get<T>(group.head(row)), max, sum) : A(1);
    A lse = max + std::log(sum);
    A factor = share * static_cast<A>(call_.dropout.scale) / sum;
    if (sum == 0) {  // no visible key, or only scores of -inf
      factor = group.has_visible_key(row) ? std::numeric_limits<A>::quiet_NaN() : A(0);
      lse = -std::numeric_limits<A>::infinity();
    }
    *group.of_query<A>(call_.lse, row) = lse;
    A wide[kMaxFeatures];
    for (int d = 0; d < call_.dim_v; ++d) wide[d] = y[d * kernel_.nr] * factor;
    T* to = group.of_query<T>(call_.y, row);
    if constexpr (std::is_same_v<T, A>)
      std::copy_n(wide, call_.dim_v, to);
    else
      narrow(wide, to, call_.dim_v);
  }

  const Attention& call_;
  const ScoreScale<A> logits_;
  const MicroKernel<A> kernel_;
  const Chunks chunks_;
  const int64_t dim_v_;  // padded
};

Status check_offsets(const char* op, const char* name, const int32_t* offsets, int64_t sequences, int size) {
  const auto must = [&](const std::string& expected, int64_t i) {
    return Status::error("fusedops.", op, ": ", name, " must ", expected, "; got ", std::to_string(offsets[i]),
                         " at position ", std::to_string(i));
  };
  if (offsets[0] != 0) return must("begin with 0", 0);
  for (int64_t i = 1; i <= sequences; ++i)
    if (offsets[i] < offsets[i - 1]) return must("ascend", i);
  if (offsets[sequences] != size) return must("end with the number of positions, " + std::to_string(size), sequences);
  return {};
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
  FUSEDOPS_TRY(cpu::check_sequences(call, arguments.op.name));
  return dispatch(call.dtype, [&](auto tag) {
    cpu::run_tasks(cpu::Forward<typename decltype(tag)::type>(call), arguments);
    return Status();
  });
}

}  // namespace fusedops
