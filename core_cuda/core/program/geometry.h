// How a call's tensors lie over its elements, for the CPU and the GPU alike: as rows and columns.
#pragma once

#include <cstdint>

#include "core/program/arguments.h"
#include "core/program/program.h"

namespace fusedops::program {

inline constexpr int kMaxRowDims = kMostRowDims;

// How a tensor is walked: element (row, column) is at the sum of the row's index in each leading dimension times its
// stride, plus the column if it extends along the columns.
struct Walk {
  Access access;
  bool along_columns;
  int64_t strides[kMaxRowDims];  // in elements; 0 where the tensor is broadcast
};

// The shape to which the inputs broadcast, without dimensions of one element, and with neighbouring dimensions as one
// where each input has all of them or none. The last dimension that is left are the columns; in a program with
// reductions, that is the last dimension itself, whatever its size.
struct Geometry {
  int64_t rows, cols;
  int dims;                    // leading dimensions
  int64_t sizes[kMaxRowDims];  // of these; their product is `rows`
  Walk inputs[kMaxInputs];     // for the operator's inputs
  Walk all, all_rows;          // of results that are like no input: kLikeAll, kLikeRows

  const Walk& of(const Result& result) const {
    if (result.like >= 0) return inputs[result.like];
    return result.like == kLikeAll ? all : all_rows;
  }

  // True if the call computes something. In rows of no elements, only results that have one element per row are.
  bool has_work(const Program& program) const;

  static Status of(const Call& call, Geometry* geometry);
};

}  // namespace fusedops::program
