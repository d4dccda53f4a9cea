// A pass over all elements that computes some of a call's results: its tiles and its partial sums. The bits of the
// results depend on the shapes alone.
//
// A tile has some rows with all columns, or a block of one long row. Rows are ordered so that the terms of a sum are
// consecutive: the leading dimensions that the sum keeps are the outer ones. Neighbouring tiles of the same sums form a
// row chunk; sums over rows are accumulated chunk by chunk.
#pragma once

#include "core/cpu/elementwise.h"
#include "core/program/geometry.h"
#include "core/program/interpreter/plan.h"

namespace fusedops::program::interpreter {

inline constexpr int64_t kTile = 1024;  // elements, at most, unless a pass is in place

// The start of each row of a tensor.
struct RowOffsets {
  int64_t sizes[kMaxRowDims], strides[kMaxRowDims];  // of the leading dimensions, in the order of the pass
  int dims;
  bool linear;  // row r starts at r * step
  int64_t step;

  int64_t offset(int64_t row) const {
    if (linear) return row * step;
    int64_t offset = 0;
    for (int i = dims - 1; i >= 0; row /= sizes[i], --i) offset += row % sizes[i] * strides[i];
    return offset;
  }

  // Calls body(i, start of row `row` + i).
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
  RowOffsets offsets;
  bool held;                   // a tile's rows are converted once for all stages, in the thread's memory
  const void* copy = nullptr;  // of a column in the compute dtype, repeated for each row of a tile; null: read in place
};

enum class Sum : uint8_t {
  none,     // the result has all elements
  columns,  // sums over rows
  rows,     // sums over columns, and over rows for some results
  total,
  row_value,  // no sum: the result has one element per row
};

struct PassResult {
  Sum sum;
  bool all_rows;  // for a sum: over no rows (rows), or over all of them (columns)
  RowOffsets offsets;
  void* partials = nullptr;  // in the compute dtype
};

struct Pass {
  const Call& call;
  const ProgramOperator& op;
  DType compute;
  uint32_t wanted;  // one bit per result of the pass

  int64_t rows, cols;
  int64_t tile;                 // elements of a tile, at most
  int64_t kept, folded;         // rows = kept * folded: the number of sums over rows, and the rows of each
  int64_t tile_rows, blocks;    // a tile has several rows, or a row has several blocks
  int64_t tiles;                // row tiles per sum
  int64_t chunk_tiles, chunks;  // row tiles per chunk, and chunks per sum
  bool stagewise;               // few long rows: each stage is computed for all rows before the next one

  const Plan* plan;
  PassInput inputs[kMaxInputs];
  PassResult results[kMaxOutputs];
  double* block_folds = nullptr;  // stagewise: [reduction][row][block]
  void* row_folds = nullptr;      // the same for whole rows: [reduction][row], in the compute dtype

  // A pass for the results `left`, or for as many as fit into one pass, which are removed from `left`. The assignment
  // ignores which results are wanted, so a result's bits do not depend on the others.
  Pass(const Call& call, const Geometry& geometry, uint32_t asked, uint32_t& left);

  // Assigns memory to all partial sums and copies, from `memory` on. Returns its size in bytes.
  size_t place(const Geometry& geometry, void* memory);

  int64_t elements() const { return rows * cols; }
  bool streamed(int64_t bytes_of_element) const { return fusedops::cpu::is_streamed(elements() * bytes_of_element); }

 private:
  RowOffsets row_offsets_of(const Walk& walk, const Geometry& geometry) const;
  void order_dims(const Geometry& geometry, uint32_t asked, uint32_t& left);
  void choose_tiles(int64_t most);

  // True if each loop reads inputs and writes a result, so that no values are in scratch memory.
  bool is_in_place() const;

  int order_[kMaxRowDims];
};

}  // namespace fusedops::program::interpreter
