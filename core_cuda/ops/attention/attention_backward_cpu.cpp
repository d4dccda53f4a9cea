// The backward of attention on the CPU, on panels (attention_cpu.h).
//
//   head groups                    the items of parallel_for, if there are many
//     blocks of kKeys keys         k and v are packed; dk and dv of the block stay in the second-level cache
//       tiles of rows              q and dy are packed
//         panels of the tile       scores = k q^T, dp = v dy^T; p and ds from them; dq^T += k^T ds
//         of the whole tile        dv += p^T dy, dk += ds^T q
//
// If there are too few head groups for the threads, the items are blocks of keys, which compute dk and dv, and chunks
// of rows, which compute dq. Scores and dp are then computed twice; sums have the same order and the same bits.
//
// The gradient of a bias has items of its own, which compute scores and dp again: blocks of keys and tiles of rows of
// its matrices, each with a loop over the heads that share the matrix.
#include <atomic>
#include <cstring>
#include <thread>

#include "core/cpu/sum.h"
#include "ops/attention/attention_cpu.h"

namespace fusedops {
namespace cpu {
namespace {

constexpr int64_t kTile = 96;          // rows, a multiple of the columns of every micro-kernel
constexpr int64_t kChunk = 4 * kTile;  // rows of an item that computes only dq
constexpr int64_t kManyGroups = 8;

// Replaces products and dp, both [keys, lanes], by p and ds, or by p and the gradients of terms if `of_terms`. lse and
// delta have one value per lane. `terms` and `keep` may be null.
template <class A, int kLanes>
[[gnu::always_inline]] inline void differentiate(const ScoreScale<A>& logits, int keys, const A* terms, bool of_terms,
                                                 const uint8_t* keep, const A* lse, const A* delta, A* scores, A* dp) {
  const A unit = logits.unit, cap = logits.cap, inner = logits.inner;
  const bool capped = logits.is_capped();
  for (int j = 0; j < keys; ++j) {
    A *p = scores + j * kLanes, *ds = dp + j * kLanes;
    A slope[kLanes];
    if (capped)
#pragma GCC ivdep
      for (int lane = 0; lane < kLanes; ++lane) {
        const auto t = activations::tanh_(inner * p[lane]);
        p[lane] = cap * t.value, slope[lane] = t.slope;
      }
    if (terms) {
      const A scale = capped ? A(1) : inner;
#pragma GCC ivdep
      for (int lane = 0; lane < kLanes; ++lane) p[lane] = scale * p[lane] + terms[j * kLanes + lane];
    }
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) {
      p[lane] = exp2_or_zero((p[lane] * unit - lse[lane]) * A(kLog2E));
      ds[lane] = p[lane] * (ds[lane] - delta[lane]);
    }
    if (capped && !of_terms)
#pragma GCC ivdep
      for (int lane = 0; lane < kLanes; ++lane) ds[lane] *= slope[lane];
  }
  if (!keep) return;
  const int count = keys * kLanes;
#pragma GCC ivdep
  for (int i = 0; i < count; ++i) scores[i] = kept_or(scores[i], A(0), keep[i]);
#pragma GCC ivdep
  for (int i = 0; i < count; ++i) dp[i] = kept_or(dp[i], A(0), keep[i]);
}

// sum(dy * y) of a row minus the gradient of its lse.
template <class T>
compute_t<T> delta_of(const HeadGroup& group, int64_t row) {
  using A = compute_t<T>;
  A dy_buffer[kMaxFeatures], y_buffer[kMaxFeatures];
  const int size = group.call.dim_v;
  const A* dy = widened(group.of_query<const T>(group.call.dy, row), dy_buffer, size);
  const A* y = widened(group.of_query<const T>(group.call.y, row), y_buffer, size);
  return group.delta(row, interleaved_sum<A>(size, [=](int64_t i) { return dy[i] * y[i]; }));
}

// Stores an element of the gradient of sinks or of a bias, in T or float32.
template <class T>
void store_element(compute_t<T> value, bool is_f32, int64_t at, void* to) {
  if (is_f32)
    static_cast<float*>(to)[at] = static_cast<float>(value);
  else
    static_cast<T*>(to)[at] = from_compute<T>(value);
}

// The gradients of sinks: items are heads, whose rows are summed in order.
template <class T>
class SinkGradients {
 public:
  using A = compute_t<T>;

  explicit SinkGradients(const Attention& call) : call_(call) {}

  int64_t items() const { return call_.heads; }
  int64_t nanoseconds_per_item() const { return 100 + call_.rows() / std::max(call_.heads, 1) * (call_.dim_v / 8 + 8); }

  void compute(int64_t begin, int64_t end) const {
    for (int64_t head = begin; head < end; ++head)
      store_element<T>(gradient_of(static_cast<int>(head)), call_.sinks.is_f32, head, call_.dsinks);
  }

 private:
  A gradient_of(int head) const {
    const A sink = call_.sinks.get<T>(head);
    A sum = 0;
    for (int64_t b = 0; b < call_.sequences; ++b) {
      const HeadGroup group = HeadGroup::of_head(call_, b, head);
      sum += interleaved_sum<A>(group.sequence.queries, [&](int64_t row) {
        const A lse = *group.of_query<const A>(call_.lse, row);
        return lse == -std::numeric_limits<A>::infinity() ? A(0)
                                                          : -exp2_((sink - lse) * A(kLog2E)) * delta_of<T>(group, row);
      });
    }
    return sum;
  }

  const Attention& call_;
};

template <class T>
class Backward {
 public:
  using A = compute_t<T>;
  enum class Parts { all, of_keys, of_queries, of_bias };

  Backward(const Attention& call, Parts parts)
      : call_(call),
        parts_(parts),
        logits_(call),
        kernel_(micro_kernel<A>(int64_t(call.queries) * call.group)),
        chunks_(Chunks::of_rows(call, kChunk)),
        key_blocks_((call.keys + kKeys - 1) / kKeys),
        matrices_(parts == Parts::of_bias ? BiasMatrices(call) : BiasMatrices()),
        keys_(rounded_up(kKeys, kernel_.mr)),
        dim_(rounded_up(call.dim, kernel_.mr)),
        dim_n_(rounded_up(call.dim, kernel_.nr)),
        dim_v_n_(rounded_up(call.dim_v, kernel_.nr)) {}

  int64_t items() const {
    if (parts_ == Parts::of_bias) return matrices_.count * row_tiles() * column_blocks();
    const int64_t groups = call_.sequences * call_.key_heads;
    return parts_ == Parts::all ? groups : parts_ == Parts::of_keys ? groups * key_blocks_ : chunks_.count();
  }

  int64_t nanoseconds_per_item() const {
    constexpr int64_t kMultiplyAdds = 256 / sizeof(A);  // per nanosecond
    const int64_t rows = int64_t(call_.queries) * call_.group, features = call_.dim + call_.dim_v + 16;
    if (parts_ == Parts::of_bias) {
      const int64_t pairs = matrices_.sharing_heads * call_.queries * call_.keys;
      return 200 + pairs * features / kMultiplyAdds / (row_tiles() * column_blocks());
    }
    const int64_t of_rows = parts_ == Parts::of_queries ? std::min(rows, kChunk) : rows;
    const int64_t keys = parts_ == Parts::of_keys ? std::min(call_.keys, kKeys) : call_.keys;
    return 200 + of_rows * keys * features * 5 / 2 / kMultiplyAdds;
  }

  void compute(int64_t begin, int64_t end) const {
    const int64_t rows = parts_ == Parts::of_bias      ? kTile
                         : parts_ == Parts::of_queries ? kChunk
                                                       : rounded_up(int64_t(call_.queries) * call_.group, kTile);
    const int64_t of_dq = needs_dq() ? rows * dim_ : 0, of_keys = needs_dk();
    ScratchArena<A> memory;
    const int64_t sizes[] = {keys_ * call_.dim,
                             dim_ * kKeys,
                             keys_ * call_.dim_v,
                             kTile * call_.dim,
                             kTile * call_.dim_v,
                             of_keys * kTile * dim_n_,
                             of_keys * kTile * dim_v_n_,
                             keys_ * kernel_.nr,
                             keys_ * kernel_.nr,
                             of_keys * keys_ * kTile,
                             of_keys * keys_ * kTile,
                             rows,
                             rows,
                             of_dq,
                             of_keys * keys_ * dim_n_,
                             of_keys * keys_ * dim_v_n_,
                             (parts_ == Parts::of_bias) * kTile * kKeys};
    int64_t pieces[std::size(sizes)];
    for (size_t i = 0; i < std::size(sizes); ++i) pieces[i] = memory.piece(sizes[i]);
    memory.allocate();
    auto piece = [&, i = 0]() mutable { return memory[pieces[i++]]; };
    const Buffers to{piece(), piece(), piece(), piece(), piece(), piece(), piece(), piece(), piece(),
                     piece(), piece(), piece(), piece(), piece(), piece(), piece(), piece()};
    for (int64_t i = begin; i < end; ++i) compute_item(i, to);
  }

 private:
  struct Buffers {
    A *k, *k_transposed, *v;  // panels of keys [dim, mr], of features [keys, mr], of keys [dim_v, mr]
    A *q, *dy;                // tile: panels of rows [dim, nr], [dim_v, nr]
    A *q_rows, *dy_rows;      // panels of features [rows, nr]
    A *p, *ds;                // one panel: [keys, nr]
    A *all_p, *all_ds;        // tile: panels of keys [rows, mr]
    A *lse, *delta;           // one value per row, in whole panels
    A* dq;                    // panels of rows [dim, nr]
    A *dk, *dv;               // block: [keys, dim], [keys, dim_v]
    A* dbias;                 // tile: [rows, kKeys]
  };

  bool needs_dq() const { return parts_ == Parts::all || parts_ == Parts::of_queries; }
  bool needs_dk() const { return parts_ == Parts::all || parts_ == Parts::of_keys; }

  // Items of a matrix of a bias.
  int64_t row_tiles() const { return (matrices_.rows + kTile - 1) / kTile; }
  int64_t column_blocks() const { return (matrices_.columns + kKeys - 1) / kKeys; }

  void compute_item(int64_t i, const Buffers& to) const {
    if (parts_ == Parts::of_bias) return compute_bias(i, to);
    if (parts_ == Parts::of_queries)
      return chunks_.visit(i, [&](const HeadGroup& group, int64_t first, int64_t last) {
        compute_rows(group, first, last, {0, group.sequence.keys}, to);
      });
    const int64_t blocks = parts_ == Parts::of_keys ? key_blocks_ : 1, of_group = i / blocks;
    const HeadGroup group(call_, of_group / call_.key_heads, static_cast<int>(of_group % call_.key_heads));
    const int begin = static_cast<int>(i % blocks) * kKeys, all = group.sequence.keys;
    compute_rows(group, 0, group.rows(), {begin, parts_ == Parts::of_keys ? std::min(begin + kKeys, all) : all}, to);
  }

  // Sums a tile of the gradient of a bias over the heads that share it, and over rows or columns that it lacks.
  void compute_bias(int64_t i, const Buffers& to) const {
    const int first_key = static_cast<int>(i % column_blocks()) * kKeys;
    const int64_t first_row = i / column_blocks() % row_tiles() * kTile;
    const int64_t place = i / column_blocks() / row_tiles() * matrices_.size;
    const int64_t end_row = matrices_.has_rows ? std::min(first_row + kTile, int64_t(call_.queries)) : call_.queries;
    const int end_key = call_.bias.has_columns() ? std::min(first_key + kKeys, call_.keys) : call_.keys;
    std::fill_n(to.dbias, kTile * kKeys, A(0));
    for (int64_t n = 0; n < matrices_.sharing_heads; ++n) {
      const int64_t head = matrices_.heads.row_at(place, n);
      const HeadGroup group = HeadGroup::of_head(call_, head / call_.heads, static_cast<int>(head % call_.heads));
      for (int64_t row = first_row; row < end_row; row += kTile)
        compute_rows(group, row, std::min(row + kTile, end_row), {first_key, end_key}, to);
    }
    const int64_t rows = std::min(kTile, matrices_.rows - first_row);
    const int columns = std::min(kKeys, matrices_.columns - first_key);
    for (int64_t row = 0; row < rows; ++row)
      for (int column = 0; column < columns; ++column)
        store_element<T>(to.dbias[row * kKeys + column], call_.bias.is_f32(),
                         place + (first_row + row) * matrices_.columns + first_key + column, call_.dbias);
  }

  // Adds a panel [keys, lanes], whose first row is `row` of a tile, to the tile of the gradient of a bias.
  void add_bias_gradient(const A* panel, int keys, int64_t row, int rows, A* dbias) const {
    const int64_t row_step = matrices_.has_rows ? kKeys : 0, key_step = call_.bias.has_columns();
    for (int lane = 0; lane < rows; ++lane)
      for (int j = 0; j < keys; ++j) dbias[(row + lane) * row_step + j * key_step] += panel[j * kernel_.nr + lane];
  }

  void compute_rows(const HeadGroup& group, int64_t first, int64_t last, Range keys, const Buffers& to) const {
    const int nr = kernel_.nr, valid_keys = group.sequence.valid_keys;
    for (int64_t row = first; row < last; ++row) {
      to.lse[row - first] = *group.of_query<A>(call_.lse, row);
      to.delta[row - first] = delta_of<T>(group, row);
    }
    std::fill(to.lse + (last - first), to.lse + rounded_up(last - first, nr), A(0));
    std::fill(to.delta + (last - first), to.delta + rounded_up(last - first, nr), A(0));
    if (needs_dq()) std::fill_n(to.dq, rounded_up(last - first, nr) * dim_, A(0));
    for (int key = keys.begin; key < keys.end; key += kKeys) {
      const int all = std::min(kKeys, keys.end - key), count = std::clamp(valid_keys - key, 0, all);
      if (needs_dk()) {
        std::fill_n(to.dk, keys_ * dim_n_, A(0));
        std::fill_n(to.dv, keys_ * dim_v_n_, A(0));
      }
      if (count > 0) compute_block(group, first, last, {key, key + count}, to);
      if (!needs_dk()) continue;
      for (int j = 0; j < all; ++j) {
        store(to.dk + j * dim_n_, 1, static_cast<A>(call_.scale), call_.dim, group.of_key<T>(call_.dk, key + j));
        store(to.dv + j * dim_v_n_, 1, static_cast<A>(call_.dropout.scale), call_.dim_v,
              group.of_key<T>(call_.dv, key + j));
      }
    }
    if (!needs_dq()) return;
    for (int64_t row = first; row < last; ++row)
      store(to.dq + (row - first) / nr * nr * dim_ + (row - first) % nr, nr, static_cast<A>(call_.scale), call_.dim,
            group.of_query<T>(call_.dq, row));
  }

  // Adds the contribution of a block of keys to the gradients.
  void compute_block(const HeadGroup& group, int64_t first, int64_t last, Range keys, const Buffers& to) const {
    const Range queries = call_.band.queries(group.sequence, keys);
    if (queries.is_empty()) return;
    const int count = keys.end - keys.begin;
    const auto k = [&](int64_t j) { return group.of_key<const T>(call_.k, keys.begin + static_cast<int>(j)); };
    const auto v = [&](int64_t j) { return group.of_key<const T>(call_.v, keys.begin + static_cast<int>(j)); };
    pack_rows(k, count, call_.dim, to.k, kernel_.mr);
    pack_rows(v, count, call_.dim_v, to.v, kernel_.mr);
    if (needs_dq()) pack_columns(k, count, count, call_.dim, to.k_transposed, kernel_.mr);
    // Tiles begin at multiples of kTile whether or not all their rows see a key, so that the order of sums is fixed.
    const int64_t from = std::max(first, queries.begin * int64_t(group.heads)) / kTile * kTile;
    const int64_t end = std::min(last, queries.end * int64_t(group.heads));
    for (int64_t row = from; row < end; row += kTile)
      compute_tile(group, row, static_cast<int>(std::min(kTile, last - row)), first, keys, to);
  }

  void compute_tile(const HeadGroup& group, int64_t row, int rows, int64_t first, Range keys, const Buffers& to) const {
    const int nr = kernel_.nr, count = keys.end - keys.begin;
    const int64_t padded = rounded_up(rows, nr), panel_keys = rounded_up(count, kernel_.mr);
    const auto q = [&](int64_t i) { return group.of_query<const T>(call_.q, row + i); };
    const auto dy = [&](int64_t i) { return group.of_query<const T>(call_.dy, row + i); };
    pack_rows(q, rows, call_.dim, to.q, nr);
    pack_rows(dy, rows, call_.dim_v, to.dy, nr);
    if (logits_.sign != 1)
      for (int64_t i = 0; i < padded * call_.dim; ++i) to.q[i] *= logits_.sign;
    if (needs_dk()) {
      pack_columns(q, rows, padded, call_.dim, to.q_rows, nr);
      pack_columns(dy, rows, padded, call_.dim_v, to.dy_rows, nr);
    }
    for (int64_t i = 0; i < padded; i += nr) {
      const int lanes = static_cast<int>(std::min<int64_t>(nr, rows - i));
      const bool has_visible = compute_panel(group, row + i, lanes, keys, to.q + i * call_.dim, to.dy + i * call_.dim_v,
                                             to.lse + (row - first) + i, to.delta + (row - first) + i, to);
      if (has_visible && parts_ == Parts::of_bias) add_bias_gradient(to.ds, count, i, lanes, to.dbias);
      if (has_visible && needs_dq()) {
        A* dq = to.dq + (row - first + i) * dim_;
        for (int64_t d = 0; d < dim_; d += kernel_.mr)
          kernel_.multiply(count, to.k_transposed + d * count, to.ds, dq + d * nr, nr, true);
      }
      if (!needs_dk()) continue;
      if (!has_visible) {
        std::fill_n(to.p, panel_keys * nr, A(0));
        std::fill_n(to.ds, panel_keys * nr, A(0));
      }
      transpose_panel(to.p, panel_keys, padded, i, to.all_p);
      transpose_panel(to.ds, panel_keys, padded, i, to.all_ds);
    }
    if (!needs_dk()) return;
    multiply_panels(kernel_, panel_keys, dim_v_n_, padded, to.all_p, to.dy_rows, to.dv, dim_v_n_, true);
    multiply_panels(kernel_, panel_keys, dim_n_, padded, to.all_ds, to.q_rows, to.dk, dim_n_, true);
  }

  // Computes p and ds of a panel. False if no key is visible to it.
  bool compute_panel(const HeadGroup& group, int64_t row, int rows, Range keys, const A* q, const A* dy, const A* lse,
                     const A* delta, const Buffers& to) const {
    const Range queries = group.queries(row, row + rows), seen = call_.band.keys(group.sequence, queries);
    if (seen.end <= keys.begin || seen.begin >= keys.end) return false;
    const Range visible_to_all = call_.band.keys_of_all(group.sequence, queries);
    const bool is_masked = call_.can_hide() || keys.begin < visible_to_all.begin || keys.end > visible_to_all.end;
    const int count = keys.end - keys.begin;
    uint8_t keep[kKeys * kMaxNr], drawn[kKeys * kMaxNr];
    A memory[kKeys * kMaxNr];
    const A* const terms = call_.has_terms() ? memory : nullptr;
    if (terms) find_terms<T>(group, row, rows, keys.begin, count, kernel_.nr, memory);
    if (is_masked && !find_visible(group, row, rows, keys.begin, count, kernel_.nr, terms, keep)) return false;
    const int64_t padded = rounded_up(count, kernel_.mr);
    multiply_panels(kernel_, padded, kernel_.nr, call_.dim, to.k, q, to.p, kernel_.nr, false);
    multiply_panels(kernel_, padded, kernel_.nr, call_.dim_v, to.v, dy, to.ds, kernel_.nr, false);
    const int all = count * kernel_.nr;
    const bool drops = call_.dropout.seed;
    const A scale = static_cast<A>(call_.dropout.scale);
    if (drops) {
      draw_dropout(group, row, rows, keys.begin, count, kernel_.nr, drawn);
      for (int i = 0; i < all; ++i) to.ds[i] = kept_or(to.ds[i] * scale, A(0), drawn[i]);
    }
    with_lanes<A>(kernel_.nr, [&](auto lanes) {
      differentiate<A, lanes>(logits_, count, terms, parts_ == Parts::of_bias, is_masked ? keep : nullptr, lse, delta,
                              to.p, to.ds);
    });
    if (drops)
      for (int i = 0; i < all; ++i) to.p[i] = kept_or(to.p[i], A(0), drawn[i]);
    if (rows < kernel_.nr)  // unused lanes are summed over, too: 0 * inf must not make them NaN
      for (int j = 0; j < count; ++j) {
        std::fill(to.p + j * kernel_.nr + rows, to.p + (j + 1) * kernel_.nr, A(0));
        std::fill(to.ds + j * kernel_.nr + rows, to.ds + (j + 1) * kernel_.nr, A(0));
      }
    return true;
  }

  // Transposes a panel [keys, nr] into rows [row, row + nr) of panels of keys [rows, mr].
  void transpose_panel(const A* panel, int64_t keys, int64_t rows, int64_t row, A* panels) const {
    const int mr = kernel_.mr, nr = kernel_.nr;
    for (int64_t j = 0; j < keys; j += mr)
      for (int i = 0; i < mr; i += 4) {
        const A* lines[4];
        for (int line = 0; line < 4; ++line) lines[line] = panel + (j + i + line) * nr;
        interleave4(lines, nr, panels + j * rows + row * mr + i, mr);
      }
  }

  void store(const A* from, int64_t stride, A factor, int size, T* to) const {
    A wide[kMaxFeatures];
    for (int d = 0; d < size; ++d) wide[d] = factor * from[d * stride];
    if constexpr (std::is_same_v<T, A>)
      std::copy_n(wide, size, to);
    else
      narrow(wide, to, size);
  }

  const Attention& call_;
  const Parts parts_;
  const ScoreScale<A> logits_;
  const MicroKernel<A> kernel_;
  const Chunks chunks_;
  const int64_t key_blocks_;
  const BiasMatrices matrices_;                 // empty except for of_bias
  const int64_t keys_, dim_, dim_n_, dim_v_n_;  // padded to multiples of mr, mr, nr, nr
};

// The number of threads that share a loop of kManyGroups items, at most.
int64_t threads_of(const Context& context) {
  std::atomic<int64_t> ranges = 0;
  context.parallel_for(kManyGroups, /*cost=*/1'000'000, [&](int64_t, int64_t) { ++ranges; });
  const int64_t cores = std::thread::hardware_concurrency();  // 0: not known
  return cores > 0 ? std::min<int64_t>(ranges, cores) : ranges.load();
}

// True if the slowest thread computes less with a group as an item, of 5 products, than with its share of 7 products.
bool are_groups_enough(int64_t groups, const Context& context) {
  if (groups >= kManyGroups) return true;
  const int64_t threads = threads_of(context);
  return 5 * threads * ((groups + threads - 1) / threads) <= 7 * groups;
}

}  // namespace
}  // namespace cpu

Status attention_backward_cpu(const Call& arguments) {
  const Attention call = Attention::of(arguments);
  FUSEDOPS_TRY(cpu::check_sequences(call, public_name(arguments.op)));
  if (call.dy_zeros) std::memset(arguments.workspace, 0, call.dy_zeros);
  return dispatch(call.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Tasks = cpu::Backward<T>;
    if (call.dsinks) cpu::run_tasks(cpu::SinkGradients<T>(call), arguments);
    if (call.dbias && call.has_scores())
      cpu::run_tasks(Tasks(call, Tasks::Parts::of_bias), arguments);
    else if (call.dbias)
      std::memset(call.dbias, 0, call.bias_bytes());
    if (cpu::are_groups_enough(call.sequences * call.key_heads, arguments.context)) {
      cpu::run_tasks(Tasks(call, Tasks::Parts::all), arguments);
    } else {
      cpu::run_tasks(Tasks(call, Tasks::Parts::of_keys), arguments);
      cpu::run_tasks(Tasks(call, Tasks::Parts::of_queries), arguments);
    }
    return Status();
  });
}

}  // namespace fusedops
