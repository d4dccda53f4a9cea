// What a compiled program is called with, for the host and for NVRTC, which has no headers but those of this project.
#pragma once

#include <cstdint>

namespace fusedops::program {

inline constexpr int kMostInputs = 24, kMostResults = 12, kMostRowDims = 8;

// How a tensor lies in the rows and columns that a program walks.
enum class Access : uint8_t {
  number,  // no tensor: an input is a number or absent, a result is not wanted
  single,  // one element
  column,  // all columns, the same in each row
  row,     // an element for each row
  full,    // all elements
  some,    // the rows of some leading dimensions, with columns or without
};

// The elements of a tensor.
enum Type : uint8_t {
  kElement,  // element_dtype() of the call
  kFloat32,  // float32 beside 16 bits
  kCompute,  // what is computed in
  kBoolean,  // from here on: of inputs alone
  kUint8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
};

struct Arguments {
  const void* input[kMostInputs];
  double number[kMostInputs];
  void* output[kMostResults];  // sums over columns or over all: partial sums, in the compute type
  int64_t rows, columns;
  int64_t rows_per_slab, tiles;               // a block has one tile of columns, and one slab of rows
  int64_t size[kMostRowDims];                 // the leading dimensions
  int64_t stride[kMostInputs][kMostRowDims];  // of Access::some, in elements
};

}  // namespace fusedops::program
