// A walk over all elements that computes some of a call's results: how it is cut into tiles, and where it keeps
// partial sums. All of it follows from the shapes alone, and so do the bits of the results.
//
// A tile has some rows, all columns of each, or a block of one row that is longer. The rows come in an order in which
// those that a sum adds follow each other: the leading dimensions that the sum keeps are the outer ones. Tiles that
// are neighbours in this order, and belong to the same sums, are a slab; sums over rows are added up slab by slab.
#pragma once

#include "core/cpu/elementwise.h"
#include "core/program/geometry.h"
#include "core/program/interpreter/plan.h"

namespace fusedops::program::interpreter {

inline constexpr int64_t kTile = 1024;  // elements, at most

// Where the rows of a tensor begin.
struct Reach {
  int64_t sizes[kMaxRowDims], strides[kMaxRowDims];  // of the leading dimensions, in the order of the pass
  int dims;
  bool linear;  // row r begins at r * step
  int64_t step;

  int64_t offset(int64_t row) const {
    if (linear) return row * step;
    int64_t offset = 0;
    for (int i = dims - 1; i >= 0; row /= sizes[i], --i) offset += row % sizes[i] * strides[i];
    return offset;
  }

  // Calls body(i, where row `row` + i begins).
  template <class Body>
  void for_rows(int64_t row, int64_t count, Body&& body) const {
    if (linear) {
      for (int64_t i = 0; i < count; ++i) body(i, (row + i) * step);
      return;
    }
    int64_t index[kMaxRowDims], at = 0;
    for (int i = dims - 1; i >= 0; row /= sizes[i], --i) at += (index[i] = row % sizes[i]) * strides[i];
    for (int64_t i = 0; i < count; ++i) {
      body(i, at);
      for (int d = dims - 1; d >= 0; --d) {
        at += strides[d];
        if (++index[d] < sizes[d]) break;
        at -= strides[d] * sizes[d];
        index[d] = 0;
      }
    }
  }
};

struct PassInput {
  Reach reach;
  bool held;                   // a tile's rows are converted once for all stages, and held by the thread
  const void* copy = nullptr;  // of a column in the compute dtype, as often as a tile has rows; null: read in place
};

enum class Sum : uint8_t {
  none,     // the result has all elements
  columns,  // over rows
  rows,     // over columns, and over rows for some results
  total,
  row_value,  // none: the result has one element per row
};

struct PassResult {
  Sum sum;
  bool all_rows;  // of a sum: over none of the rows (rows), or over all of them (columns)
  Reach reach;
  void* partials = nullptr;  // in the compute dtype
};

struct Pass {
  const Call& call;
  const ProgramOperator& op;
  DType compute;
  uint32_t wanted;  // a bit for each result of the pass

  int64_t rows, cols;
  int64_t kept, folded;       // rows = kept * folded: the sums over rows that there are, and the rows of each
  int64_t tile_rows, blocks;  // a tile has several rows, or a row several blocks
  int64_t tiles;              // of rows, for each sum
  int64_t slab_tiles, slabs;  // tiles of rows in a slab, and slabs for each sum
  bool stagewise;             // few long rows: each stage is computed for all rows before the next

  const Plan* plan;
  PassInput inputs[kMaxInputs];
  PassResult results[kMaxOutputs];
  double* block_folds = nullptr;  // stagewise: [reduction][row][block]
  void* row_folds = nullptr;      // and of whole rows: [reduction][row], in the compute dtype

  // The pass for the results `left`, or for as many of them as fit into one; takes these away. Those that are not
  // asked for, too, decide which go together: what is computed with it does not change a result's bits.
  Pass(const Call& call, const Geometry& geometry, uint32_t asked, uint32_t& left);

  // Gives all partial sums and copies their places from `memory` on. Returns how many bytes they take.
  size_t place(const Geometry& geometry, void* memory);

  int64_t elements() const { return rows * cols; }
  bool streamed(int64_t bytes_of_element) const { return fusedops::cpu::is_streamed(elements() * bytes_of_element); }

 private:
  Reach reach_of(const Walk& walk, const Geometry& geometry) const;
  void choose_order(const Geometry& geometry, uint32_t asked, uint32_t& left);
  void choose_tiles();

  int order_[kMaxRowDims];
};

}  // namespace fusedops::program::interpreter
