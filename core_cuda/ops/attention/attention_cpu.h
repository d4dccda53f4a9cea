// Shared parts of the forward and backward of attention on the CPU. Both work on panels: scores [keys, lanes] of a
// block of keys for as many queries as the micro-kernel has columns. The softmax then needs no sum across a vector, and
// the result of a product is packed for the next one.
//
// The rows of a panel are queries of the heads that share a key head; the heads of one query are adjacent. A block of
// keys begins at a multiple of kKeys, and each panel adds its blocks in order: a row's bits depend on its sequence
// alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/common/exp.h"
#include "core/common/formulas.h"
#include "core/cpu/elementwise.h"
#include "core/cpu/random_words.h"
#include "core/cpu/row_blocks.h"
#include "core/cpu/scratch.h"
#include "ops/attention/attention_scores.h"
#include "ops/products/matmul_cpu.h"

namespace fusedops::cpu {

inline constexpr int kKeys = 128;  // keys of a block: its panels of scores and keys stay in the second-level cache

constexpr int64_t rounded_up(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

// The softmax is over unit * z. Without a soft cap and added terms, z is a product q k; otherwise it is the score.
template <class A>
struct ScoreScale {
  explicit ScoreScale(const Attention& call)
      : is_product(!call.softcap && !call.has_terms()),
        sign(!is_product || call.scale > 0 ? 1
             : call.scale < 0              ? -1
                                           : 0),
        unit(static_cast<A>(!is_product || call.scale == 0 ? 1 : std::fabs(call.scale))),
        cap(static_cast<A>(call.softcap)),
        inner(static_cast<A>(call.softcap ? call.scale / call.softcap : call.scale)) {}

  bool is_capped() const { return cap != 0; }

  bool is_product;
  A sign;  // sign of the scale, applied to the queries
  A unit;
  A cap, inner;  // z = cap * tanh(inner * product) + terms, or inner * product + terms without a cap
};

// The query heads of a sequence that share a key head, or one of them.
struct HeadGroup {
  const Attention& call;
  int64_t b;
  int key_head, first_head, heads;
  Sequence sequence;

  HeadGroup(const Attention& call, int64_t b, int key_head)
      : HeadGroup(call, b, key_head, key_head * call.group, call.group) {}
  static HeadGroup of_head(const Attention& call, int64_t b, int head) {
    return {call, b, call.key_head(head), head, 1};
  }

  int64_t rows() const { return int64_t(sequence.queries) * heads; }
  int query(int64_t row) const { return static_cast<int>(row / heads); }
  int head(int64_t row) const { return first_head + static_cast<int>(row % heads); }
  Range queries(int64_t begin, int64_t end) const { return {query(begin), query(end - 1) + 1}; }

  template <class T>
  T* of_query(const HeadRows& tensor, int64_t row) const {
    return tensor.row<T>(b, sequence.first_query + query(row), head(row));
  }
  template <class T>
  T* of_key(const HeadRows& tensor, int key) const {
    return tensor.row<T>(b, sequence.first_key + key, key_head);
  }

  template <class A>
  A delta(int64_t row, A sum) const {
    return call.delta(sum, b, sequence.first_query + query(row), head(row));
  }

  // Index of a row among the rows of all sequences.
  int64_t index(int64_t row) const { return call.row(b, sequence, head(row), query(row)); }

  // The mask of a row.
  const uint8_t* mask(int64_t row) const { return call.mask.row(index(row)); }
  template <class T>
  bool has_visible_key(int64_t row) const {
    const Range keys = call.band.keys(sequence, query(row));
    const uint8_t* const kept = call.has_mask ? mask(row) : nullptr;
    const int64_t place = call.bias.is_given() ? call.bias.place(index(row)) : 0;
    for (int key = keys.begin; key < keys.end; ++key)
      if ((!kept || kept[call.mask.has_columns() ? key : 0]) && !(call.bias.is_given() && is_hidden<T>(place, key)))
        return true;
    return false;
  }

 private:
  HeadGroup(const Attention& call, int64_t b, int key_head, int first_head, int heads)
      : call(call), b(b), key_head(key_head), first_head(first_head), heads(heads), sequence(call.sequence(b)) {}

  template <class T>
  bool is_hidden(int64_t place, int key) const {
    return call.bias.at<T>(place, key) == -std::numeric_limits<compute_t<T>>::infinity();
  }
};

// Fills keep [keys, lanes] for rows from `row` on and keys from `key` on: 1 if the key is visible to the row. `terms`
// are those of find_terms(), or null. False if no key is visible.
template <class A>
bool find_visible(const HeadGroup& group, int64_t row, int rows, int key, int keys, int lanes, const A* terms,
                  uint8_t* keep) {
  int begin[kMaxNr] = {}, end[kMaxNr] = {};
  for (int lane = 0; lane < rows; ++lane) {
    const Range range = group.call.band.keys(group.sequence, group.query(row + lane));
    begin[lane] = range.begin - key, end[lane] = range.end - key;
  }
  for (int j = 0; j < keys; ++j)
#pragma GCC ivdep
    for (int lane = 0; lane < lanes; ++lane)
      keep[j * lanes + lane] = static_cast<uint8_t>(begin[lane] <= j) & static_cast<uint8_t>(j < end[lane]);
  if (group.call.has_mask) {
    for (int lane = 0; lane < rows; ++lane) {
      const uint8_t* mask = group.mask(row + lane);
      if (!group.call.mask.has_columns()) {
        if (!*mask)
          for (int j = 0; j < keys; ++j) keep[j * lanes + lane] = 0;
        continue;
      }
      for (int j = 0; j < keys; ++j) keep[j * lanes + lane] &= static_cast<uint8_t>(mask[key + j] != 0);
    }
  }
  if (group.call.bias.is_given())
#pragma GCC ivdep
    for (int i = 0; i < keys * lanes; ++i)
      keep[i] &= static_cast<uint8_t>(terms[i] != -std::numeric_limits<A>::infinity());
  return std::any_of(keep, keep + keys * lanes, [](uint8_t kept) { return kept != 0; });
}

// Fills terms [keys, lanes] with ALiBi and the bias, for rows from `row` on and keys from `key` on.
template <class T>
void find_terms(const HeadGroup& group, int64_t row, int rows, int key, int keys, int lanes, compute_t<T>* terms) {
  using A = compute_t<T>;
  const Attention& call = group.call;
  A slope[kMaxNr] = {};
  int diagonal[kMaxNr] = {};
  for (int lane = 0; lane < rows; ++lane) {
    if (call.alibi.data) slope[lane] = call.alibi.get<T>(group.head(row + lane));
    diagonal[lane] = group.query(row + lane) + group.sequence.shift;
  }
  for (int j = 0; j < keys; ++j)
#pragma GCC ivdep
    for (int lane = 0; lane < lanes; ++lane) terms[j * lanes + lane] = alibi_bias(slope[lane], diagonal[lane], key + j);
  if (!call.bias.is_given()) return;
  for (int lane = 0; lane < rows; ++lane) {
    const int64_t place = call.bias.place(group.index(row + lane));
    for (int j = 0; j < std::min(keys, call.keys - key); ++j)
      terms[j * lanes + lane] += call.bias.at<T>(place, key + j);
  }
}

// Fills keep [keys, lanes]: 1 if dropout keeps the probability.
inline void draw_dropout(const HeadGroup& group, int64_t row, int rows, int key, int keys, int lanes, uint8_t* keep) {
  const auto dropout = group.call.dropout.prepared<float>();
  for (int lane = 0; lane < rows; ++lane) {
    const int64_t first = group.call.first_probability(group.index(row + lane));
    const RandomWords<kKeys> words(dropout.seed, Runs(), first + key, keys);
    for (int j = 0; j < keys; ++j) keep[j * lanes + lane] = words.data()[j] >= dropout.least;
  }
  for (int lane = rows; lane < lanes; ++lane)
    for (int j = 0; j < keys; ++j) keep[j * lanes + lane] = 0;
}

// One value per lane, in vectors of 32 bytes.
template <class A, int kLanes>
struct Lanes {
  typedef A Vector __attribute__((vector_size(32)));
  static constexpr int kWidth = 32 / sizeof(A), kVectors = kLanes / kWidth;
  static_assert(kLanes % kWidth == 0);

  static Lanes from(const A* values) {
    Lanes lanes;
    for (int v = 0; v < kVectors; ++v) lanes.vectors[v] = loaded(values + v * kWidth);
    return lanes;
  }
  void to(A* values) const { std::memcpy(values, vectors, sizeof vectors); }

  // Elementwise maximum that ignores NaN.
  void raise(const A* values) {
    for (int v = 0; v < kVectors; ++v) {
      const Vector other = loaded(values + v * kWidth);
      vectors[v] = other > vectors[v] ? other : vectors[v];
    }
  }
  void add(const A* values) {
    for (int v = 0; v < kVectors; ++v) vectors[v] += loaded(values + v * kWidth);
  }

  // Loads vector by vector: memcpy of the array would go through memory.
  static Vector loaded(const A* values) {
    Vector vector;
    std::memcpy(&vector, values, sizeof vector);
    return vector;
  }

  Vector vectors[kVectors];
};

// Calls body with the columns of a micro-kernel as a constant, so that loops over them are vectorized.
template <class A, class Body>
void with_lanes(int lanes, Body&& body) {
  const auto call = [&](auto count) { run_widest([&] { body(count); }); };
  switch (lanes) {
    case 4:
      if constexpr (sizeof(A) == 8) call(std::integral_constant<int, 4>());
      break;
    case 8:
      return call(std::integral_constant<int, 8>());
    case 12:
      if constexpr (sizeof(A) == 8) call(std::integral_constant<int, 12>());
      break;
    case 16:
      return call(std::integral_constant<int, 16>());
    case 24:
      return call(std::integral_constant<int, 24>());
    case 32:
      return call(std::integral_constant<int, 32>());
  }
}

// Packs rows that begin at row_pointer(row) into panels [k, lanes], with zeros in lanes beyond the rows.
template <class RowPointer, class A>
void pack_rows(RowPointer row_pointer, int64_t rows, int64_t k, A* panels, int lanes) {
  for (int64_t row = 0; row < rows; row += lanes, panels += k * lanes)
    pack_along_k([&](int i) { return row_pointer(row + i); }, static_cast<int>(std::min<int64_t>(lanes, rows - row)), k,
                 panels, lanes);
}

// Packs columns of rows that begin at row_pointer(row) into panels [steps, width], with zeros beyond the rows and
// columns.
template <class RowPointer, class A>
void pack_columns(RowPointer row_pointer, int64_t rows, int64_t steps, int64_t columns, A* panels, int width) {
  for (int64_t column = 0; column < columns; column += width, panels += steps * width) {
    pack_across_k([&](int64_t row) { return row_pointer(row) + column; },
                  static_cast<int>(std::min<int64_t>(width, columns - column)), rows, panels, width);
    std::fill(panels + rows * width, panels + steps * width, A(0));
  }
}

// Chunks of the rows or of the keys of head groups, the items of parallel_for. Packed sequences differ in their number
// of chunks.
class Chunks {
 public:
  static Chunks of_rows(const Attention& call, int64_t size) {
    return {call, call.offsets_q, int64_t(call.queries) * call.group, call.group, size};
  }
  static Chunks of_keys(const Attention& call, int64_t size) { return {call, call.offsets_k, call.keys, 1, size}; }

  int64_t count() const { return first(call_.sequences) * call_.key_heads; }

  // The first chunk of a head group.
  int64_t first(int64_t b, int key_head) const { return key_head * first(call_.sequences) + first(b); }

  // The chunk at place i of an order in which the heads of the same positions are adjacent, as they are in memory.
  int64_t across_heads(int64_t i) const { return i % call_.key_heads * first(call_.sequences) + i / call_.key_heads; }

  // Calls body(group, first row or key, last) for chunk i, if it has any.
  template <class Body>
  void visit(int64_t i, Body&& body) const {
    const int64_t all = first(call_.sequences), chunk = i % all;
    int64_t low = 0, high = call_.sequences;  // the sequence b with first(b) <= chunk < first(b + 1)
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (first(middle) <= chunk ? low : high) = middle;
    }
    const HeadGroup group(call_, low, static_cast<int>(i / all));
    const int64_t size = offsets_ ? (offsets_[low + 1] - offsets_[low]) * times_ : size_;
    const int64_t begin = (chunk - first(low)) * chunk_size_, end = std::min(begin + chunk_size_, size);
    if (begin < end) body(group, begin, end);
  }

 private:
  Chunks(const Attention& call, const int32_t* offsets, int64_t size, int64_t times, int64_t chunk_size)
      : call_(call), offsets_(offsets), size_(size), times_(times), chunk_size_(chunk_size) {}

  int64_t first(int64_t b) const {
    return offsets_ ? offsets_[b] * times_ / chunk_size_ + b : b * ((size_ + chunk_size_ - 1) / chunk_size_);
  }

  const Attention& call_;
  const int32_t* const offsets_;  // null: all sequences have size_ rows or keys
  const int64_t size_, times_;    // times_: rows per position
  const int64_t chunk_size_;
};

// Scratch memory of an item, divided into buffers.
template <class A>
class ScratchArena {
 public:
  // Allocates the buffers after the last size is known.
  void allocate() { memory_ = scratch<A>(size_); }

  int64_t piece(int64_t size) {
    const int64_t begin = size_;
    size_ += rounded_up(size, 64 / sizeof(A));
    return begin;
  }

  A* operator[](int64_t piece) const { return memory_.get() + piece; }

 private:
  int64_t size_ = 0;
  Scratch<A> memory_;
};

template <class Tasks>
void run_tasks(const Tasks& tasks, const Call& call) {
  call.context.parallel_for(tasks.items(), tasks.nanoseconds_per_item(),
                            [&](int64_t begin, int64_t end) { tasks.compute(begin, end); });
}

// An error that names the first length, query offset or offset that is out of range.
Status check_sequences(const Attention& call, const char* op);

}  // namespace fusedops::cpu
