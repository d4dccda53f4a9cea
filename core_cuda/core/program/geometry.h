// A call's tensors as rows and columns, for CPU and GPU.
#pragma once

#include <cstdint>

#include "core/program/arguments.h"
#include "core/program/program.h"

namespace fusedops::program {

inline constexpr int kMaxRowDims = kMaxProgramRowDims;

// The addressing of a tensor. Element (row, column) is at the sum of the row's index in each leading dimension times
// its stride, plus the column if the tensor has columns.
struct Walk {
  Access access;
  bool along_columns;
  int64_t strides[kMaxRowDims];  // in elements; 0 along broadcast dimensions
};

// The broadcast shape of the inputs without dimensions of size 1. Neighbouring dimensions are merged where each input
// has all or none of them. The last one holds the columns; with reductions, it is always the last dimension itself.
struct Geometry {
  int64_t rows, cols;
  int dims;                    // leading dimensions
  int64_t sizes[kMaxRowDims];  // of the leading dimensions; their product is `rows`
  Walk inputs[kMaxInputs];     // of the operator's inputs
  Walk all, all_rows;          // of results without an input's shape: kLikeAll, kLikeRows

  const Walk& of(const Result& result) const {
    if (result.like >= 0) return inputs[result.like];
    return result.like == kLikeAll ? all : all_rows;
  }

  // True if the call computes something. Empty rows only have results with one element per row.
  bool has_work(const Program& program) const;

  static Status of(const Call& call, Geometry* geometry);
};

}  // namespace fusedops::program
