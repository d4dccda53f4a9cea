#include "core/program/interpreter/worker.h"

#include "core/cpu/scratch.h"
#include "core/program/interpreter/elements.h"
#include "core/program/interpreter/folds.h"

namespace fusedops::program::interpreter {
namespace {

// Distance of element places. It is not a multiple of 4096 bytes, at which processors mistake a load for a recent store
// to another place (4K aliasing).
int64_t element_place(const Pass& pass) { return pass.tile + 32; }

int64_t row_place(const Pass& pass) { return (pass.tile_rows + 15) / 16 * 16; }

// Scratch memory that a thread reuses in its next call.
char* thread_scratch(size_t bytes) {
  thread_local fusedops::cpu::Scratch<char> memory;
  thread_local size_t size = 0;
  if (bytes > size) {
    memory = fusedops::cpu::scratch<char>(static_cast<int64_t>(bytes));
    size = bytes;
  }
  return memory.get();
}

}  // namespace

template <class A>
Worker<A>::Worker(const Pass& pass) : pass_(pass), plan_(*pass.plan) {
  const auto [calls, rows, elements] = plan_.places;
  const int places = calls + rows + elements;
  const auto results = static_cast<int>(pass.op.program.results.size());
  const auto reductions = static_cast<int64_t>(pass.op.program.reductions.size());
  const auto summed_in_tile = [&](int i) {
    return (pass.wanted >> i & 1) && pass.results[i].sum == Sum::columns && pass.tile_rows > 1;
  };
  const auto rounded = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
  size_t sums = 0;
  for (int i = 0; i < results; ++i) sums += summed_in_tile(i);
  int64_t held = 0;
  const int64_t held_size = (pass.cols * pass.tile_rows + 63) / 32 * 32;
  for (const int i : plan_.inputs) held += pass.inputs[i].held;
  const size_t of_call = rounded(calls * sizeof(A)), of_rows = rounded(rows * row_place(pass) * sizeof(A));
  const size_t of_elements = ((elements + sums) * element_place(pass) + held * held_size) * sizeof(A);
  const size_t of_places = rounded(places * sizeof(A*));
  char* memory =
      thread_scratch(of_call + of_rows + of_elements + of_places + reductions * pass.tile_rows * sizeof(double));
  const auto take = [&](size_t bytes) {
    char* const at = memory;
    memory += bytes;
    return at;
  };
  of_elements_ = reinterpret_cast<A*>(take(of_elements));
  of_rows_ = reinterpret_cast<A*>(take(of_rows));
  of_call_ = reinterpret_cast<A*>(take(of_call));
  at_ = reinterpret_cast<A**>(take(of_places));
  totals_ = reinterpret_cast<double*>(memory);
  for (int i = 0; i < places; ++i) at_[i] = own(i);
  A* next = of_elements_ + elements * element_place(pass);
  for (int i = 0; i < results; ++i) {
    if (!summed_in_tile(i)) continue;
    sums_[i] = next;
    next += element_place(pass);
  }
  for (const int i : plan_.inputs) {
    if (!pass.inputs[i].held) continue;
    held_[i] = next;
    next += held_size;
  }
  for (const Stage& stage : plan_.stages) run_steps(stage.of_level[0], 1);
}

template <class A>
A* Worker<A>::own(int place) const {
  const auto [calls, rows, elements] = plan_.places;
  if (place < calls) return of_call_ + place;
  if (place < calls + rows) return of_rows_ + (place - calls) * row_place(pass_);
  return of_elements_ + (place - calls - rows) * element_place(pass_);
}

// Calls body() for each row tile of a chunk, with the chunk's sums over these columns.
template <class A>
template <class Body>
void Worker<A>::for_tiles(int64_t chunk, int64_t first_column, int64_t columns, Body&& body) {
  const auto results = static_cast<int>(pass_.op.program.results.size());
  const auto is_sum = [&](int i) { return (pass_.wanted >> i & 1) && pass_.results[i].sum == Sum::columns; };
  const auto of_chunk = [&](int i) { return static_cast<A*>(pass_.results[i].partials) + chunk * pass_.cols; };
  for (int i = 0; i < results; ++i) {
    if (!is_sum(i)) continue;
    if (pass_.tile_rows == 1) sums_[i] = of_chunk(i);
    std::fill_n(sums_[i] + first_column, columns * pass_.tile_rows, A(0));
  }
  const int64_t kept = chunk / pass_.chunks, first = chunk % pass_.chunks * pass_.chunk_tiles;
  const int64_t last = std::min(first + pass_.chunk_tiles, pass_.tiles);
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t row = tile * pass_.tile_rows, count = std::min(pass_.tile_rows, pass_.folded - row);
    begin_row_tile(kept * pass_.folded + row, count, kept * pass_.tiles + tile);
    body();
  }
  if (pass_.tile_rows == 1) return;
  for (int i = 0; i < results; ++i) {
    if (!is_sum(i)) continue;
    A* const to = of_chunk(i);
    std::copy_n(sums_[i], columns, to);
    for (int64_t row = 1; row < pass_.tile_rows; ++row)
      for (int64_t j = 0; j < columns; ++j) to[j] += sums_[i][row * columns + j];
  }
}

template <class A>
void Worker<A>::run_chunk(int64_t chunk) {
  for_tiles(chunk, 0, pass_.cols, [&] {
    for (size_t i = 0; i < plan_.stages.size(); ++i) {
      const Stage& stage = plan_.stages[i];
      for (int64_t block = 0; block < pass_.blocks; ++block) {
        begin_block(block);
        run_stage(stage);
      }
      if (i + 1 < plan_.stages.size()) finish_folds(stage);
    }
  });
}

template <class A>
void Worker<A>::run_chunk(int64_t chunk, int64_t block) {
  begin_block(block);
  for_tiles(chunk, column_, width_, [&] {
    if (pass_.stagewise) point_to_folds();
    run_stage(plan_.stages.back());
  });
}

template <class A>
void Worker<A>::run_terms(int stage, int64_t row, int64_t block) {
  begin_row_tile(row, 1, row);
  point_to_folds();
  begin_block(block);
  run_stage(plan_.stages[stage]);
}

template <class A>
void Worker<A>::finish() {
  if (streams_) fusedops::cpu::finish_streaming();
}

template <class A>
void Worker<A>::begin_row_tile(int64_t row, int64_t count, int64_t tile) {
  row_ = row;
  rows_ = count;
  tile_ = tile;
}

template <class A>
void Worker<A>::begin_block(int64_t block) {
  block_ = block;
  column_ = block * pass_.tile;
  width_ = std::min(pass_.tile, pass_.cols - column_);
}

template <class A>
void Worker<A>::run_stage(const Stage& stage) {
  run_steps(stage.of_level[1], rows_);
  if (width_ > 0) return run_steps(stage.of_level[2], elements());
  for (const int reduction : stage.reductions)  // empty rows
    std::fill_n(totals_ + reduction * pass_.tile_rows, rows_, neutral(pass_.op.program.reductions[reduction].fold));
}

template <class A>
void Worker<A>::run_steps(const std::vector<PlanStep>& steps, int64_t n) {
  for (const PlanStep& step : steps) {
    switch (step.kind) {
      case StepKind::constant:
        *at_[step.to] = static_cast<A>(step.value);
        break;
      case StepKind::load:
        load(step, n);
        break;
      case StepKind::compute: {
        A* to = step.stored < 0 ? nullptr : in_result(step.stored);
        if (!to) to = own(step.to);
        if (step.by_row && rows_ > 1)
          compute_rows(step, to);
        else
          loops_[step.which](at_[step.a], at_[step.b], at_[step.c], to, n);
        at_[step.to] = to;
        break;
      }
      case StepKind::expand:
        expand(step);
        break;
      case StepKind::fold:
        fold(step);
        break;
      case StepKind::store:
        store_result(step);
        break;
    }
  }
}

template <class A>
void Worker<A>::compute_rows(const PlanStep& step, A* to) {
  const auto stride = [&](int operand) {
    return step.levels[operand] == Level::element ? width_ : static_cast<int64_t>(step.levels[operand] == Level::row);
  };
  const A *a = at_[step.a], *b = at_[step.b], *c = at_[step.c];
  const int64_t a_stride = stride(0), b_stride = stride(1), c_stride = stride(2);
  for (int64_t i = 0; i < rows_; ++i, a += a_stride, b += b_stride, c += c_stride, to += width_)
    loops_[step.which](a, b, c, to, width_);
}

template <class A>
void Worker<A>::load_one(const PlanStep& step) {
  const View* view = pass_.call.inputs[step.which];
  A* const to = at_[step.to];
  *to = static_cast<A>(pass_.call.scalars[step.which]);
  if (view)
    with_input_type<A>(view->dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      read(static_cast<const T*>(view->data), to, 1);
    });
}

template <class A>
void Worker<A>::load(const PlanStep& step, int64_t n) {
  if (step.to < plan_.places[0]) return load_one(step);
  const PassInput& input = pass_.inputs[step.which];
  const View& view = *pass_.call.inputs[step.which];
  const bool of_rows = step.to < plan_.places[0] + plan_.places[1];
  const int64_t width = of_rows ? 1 : width_, column = of_rows ? 0 : column_;
  if (input.copy) {
    at_[step.to] = const_cast<A*>(static_cast<const A*>(input.copy)) + column;
    return;
  }
  const bool adjoin = rows_ == 1 || (input.offsets.linear && input.offsets.step == width);
  if (adjoin && view.dtype == pass_.compute) {
    at_[step.to] = static_cast<A*>(view.data) + input.offsets.offset(row_) + column;
    return;
  }
  A* const to = at_[step.to] = input.held ? held_[step.which] + column : own(step.to);
  if (input.held && step.again) return;
  with_input_type<A>(view.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* const from = static_cast<const T*>(view.data) + column;
    if (adjoin)
      read(from + input.offsets.offset(row_), to, n);
    else if (of_rows)
      input.offsets.for_rows(row_, rows_, [&](int64_t i, int64_t offset) { to[i] = value_of<A>(from[offset]); });
    else
      input.offsets.for_rows(row_, rows_,
                             [&](int64_t i, int64_t offset) { read(from + offset, to + i * width, width); });
  });
}

template <class A>
void Worker<A>::expand(const PlanStep& step) {
  A* const to = at_[step.to] = own(step.to);
  const A* const from = at_[step.a];
  if (step.levels[0] == Level::call || rows_ == 1)
    std::fill_n(to, elements(), *from);
  else
    for (int64_t i = 0; i < rows_; ++i) std::fill_n(to + i * width_, width_, from[i]);
}

template <class A>
void Worker<A>::fold(const PlanStep& step) {
  const Fold fold = pass_.op.program.reductions[step.which].fold;
  const A* const values = at_[step.a];
  for (int64_t i = 0; i < rows_; ++i) {
    double block;
    if (step.product)
      block = sum_of_products(values + i * width_, at_[step.b] + i * width_, width_);
    else if (step.levels[0] == Level::element)
      block = fold_of(fold, values + i * width_, width_);
    else
      block = fold_of_equal(fold, values[step.levels[0] == Level::row ? i : 0], width_);
    if (pass_.stagewise) {
      pass_.block_folds[(step.which * pass_.rows + row_) * pass_.blocks + block_] = block;
    } else {
      double& total = totals_[step.which * pass_.tile_rows + i];
      total = block_ == 0 ? block : joined(fold, total, block);
    }
  }
}

template <class A>
void Worker<A>::finish_folds(const Stage& stage) {
  for (const int reduction : stage.reductions) {
    const Fold fold = pass_.op.program.reductions[reduction].fold;
    const double* const totals = totals_ + reduction * pass_.tile_rows;
    A* const to = at_[plan_.reduced[reduction]];
    for (int64_t i = 0; i < rows_; ++i) to[i] = static_cast<A>(finished(fold, totals[i], pass_.cols));
  }
}

// For a stagewise pass: points to the reductions of this row.
template <class A>
void Worker<A>::point_to_folds() {
  for (size_t i = 0; i < plan_.reduced.size(); ++i)
    if (plan_.reduced[i] >= 0) at_[plan_.reduced[i]] = static_cast<A*>(pass_.row_folds) + i * pass_.rows + row_;
}

// The address of a result's elements of the tile, if they can be computed in place.
template <class A>
A* Worker<A>::in_result(int result) const {
  const PassResult& to = pass_.results[result];
  const View& view = pass_.call.outputs[result];
  if (to.sum != Sum::none || view.dtype != pass_.compute || pass_.streamed(sizeof(A))) return nullptr;
  if (rows_ > 1 && !(to.offsets.linear && to.offsets.step == width_)) return nullptr;
  return static_cast<A*>(view.data) + to.offsets.offset(row_) + column_;
}

template <class A>
void Worker<A>::store(int result, const A* values) {
  if (values == in_result(result)) return;
  const PassResult& to = pass_.results[result];
  const View& view = pass_.call.outputs[result];
  with_type<A>(view.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const data = static_cast<T*>(view.data) + column_;
    const bool streamed = pass_.streamed(sizeof(T));
    streams_ |= streamed;
    if (rows_ == 1 || (to.offsets.linear && to.offsets.step == width_))
      write(values, data + to.offsets.offset(row_), elements(), streamed);
    else
      to.offsets.for_rows(row_, rows_,
                          [&](int64_t i, int64_t offset) { write(values + i * width_, data + offset, width_, false); });
  });
}

template <class A>
void Worker<A>::store_result(const PlanStep& step) {
  const A* const values = at_[step.a];
  const PassResult& to = pass_.results[step.which];
  A* const partials = static_cast<A*>(to.partials);
  switch (to.sum) {
    case Sum::none:
      return store(step.which, values);
    case Sum::columns: {
      A* const sums = sums_[step.which] + column_;
      const int64_t n = elements();
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) sums[i] += values[i];
      return;
    }
    case Sum::total:
      partials[tile_ * pass_.blocks + block_] = sum_of(values, elements());
      return;
    case Sum::row_value: {
      if (block_ > 0) return;
      const Level level = step.levels[0];
      const int64_t stride = level == Level::element ? width_ : level == Level::row;
      with_type<A>(pass_.call.outputs[step.which].dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        T* const data = static_cast<T*>(pass_.call.outputs[step.which].data);
        to.offsets.for_rows(row_, rows_,
                            [&](int64_t i, int64_t offset) { data[offset] = from_compute<T>(values[i * stride]); });
      });
      return;
    }
    case Sum::rows:
      if (partials) {
        for (int64_t i = 0; i < rows_; ++i)
          partials[(row_ + i) * pass_.blocks + block_] = sum_of(values + i * width_, width_);
        return;
      }
      with_type<A>(pass_.call.outputs[step.which].dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        T* const data = static_cast<T*>(pass_.call.outputs[step.which].data);
        to.offsets.for_rows(row_, rows_, [&](int64_t i, int64_t offset) {
          data[offset] = from_compute<T>(sum_of(values + i * width_, width_));
        });
      });
  }
}

template class Worker<float>;
template class Worker<double>;

}  // namespace fusedops::program::interpreter
