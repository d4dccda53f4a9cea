// The work of one thread in a pass: it runs the plan's steps on tiles.
#pragma once

#include "core/program/interpreter/loops.h"
#include "core/program/interpreter/pass.h"

namespace fusedops::program::interpreter {

template <class A>
class Worker {
 public:
  explicit Worker(const Pass& pass);

  // Computes a row chunk, or one block of the columns of its rows if no reduction needs the other columns. Each sum has
  // its own chunks: a pass has kept * chunks of them.
  void run_chunk(int64_t chunk);
  void run_chunk(int64_t chunk, int64_t block);

  // For a stagewise pass: a block of the terms of a stage.
  void run_terms(int stage, int64_t row, int64_t block);

  void finish();

 private:
  template <class Body>
  void for_tiles(int64_t chunk, int64_t first_column, int64_t columns, Body&& body);
  void begin_row_tile(int64_t row, int64_t count, int64_t tile);
  void begin_block(int64_t block);
  void run_stage(const Stage& stage);
  void run_steps(const std::vector<PlanStep>& steps, int64_t n);
  void finish_folds(const Stage& stage);
  void point_to_folds();

  void compute_rows(const PlanStep& step, A* to);
  void load(const PlanStep& step, int64_t n);
  void load_one(const PlanStep& step);
  void expand(const PlanStep& step);
  void fold(const PlanStep& step);
  void store_result(const PlanStep& step);
  void store(int result, const A* values);
  A* in_result(int result) const;

  A* own(int place) const;
  int64_t elements() const { return rows_ * width_; }

  const Pass& pass_;
  const Plan& plan_;
  const Loop<A>* const loops_ = loops<A>();

  A** at_;  // the current address of each place
  A *of_call_, *of_rows_, *of_elements_;
  A* held_[kMaxInputs];   // an input's rows of the tile
  A* sums_[kMaxOutputs];  // of the chunk: one row per row of a tile, or one
  double* totals_;        // [reduction][row of the tile]
  bool streams_ = false;

  int64_t row_, rows_;  // of the tile, in the order of the pass
  int64_t tile_;        // its index among the row tiles
  int64_t block_, column_, width_;
};

extern template class Worker<float>;
extern template class Worker<double>;

}  // namespace fusedops::program::interpreter
