// Arguments of a compiled program, for the host and for NVRTC, which sees only headers of this project.
#pragma once

#include <cstdint>

namespace fusedops::program {

inline constexpr int kMaxProgramInputs = 24, kMaxProgramResults = 12, kMaxProgramRowDims = 8;

// The extent of a tensor along the rows and columns of a program.
enum class Access : uint8_t {
  number,  // no tensor: a number or an absent input; a result that is not wanted
  single,  // one element
  column,  // one value per column, for all rows
  row,     // one value per row
  full,    // all elements
  some,    // the rows of some leading dimensions, with or without columns
};

// Element types.
enum Type : uint8_t {
  kElement,  // element_dtype() of the call
  kFloat32,  // a float32 tensor with 16-bit ones
  kCompute,  // the compute type
  kBoolean,  // this and the following: inputs only
  kUint8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
};

struct Arguments {
  const void* input[kMaxProgramInputs];
  double number[kMaxProgramInputs];
  void* output[kMaxProgramResults];  // sums over columns or over all elements: partial sums, in the compute type
  int64_t rows, columns;
  int64_t rows_per_chunk, tiles;                          // a block processes one tile of columns and one row chunk
  int64_t size[kMaxProgramRowDims];                       // the leading dimensions
  int64_t stride[kMaxProgramInputs][kMaxProgramRowDims];  // for Access::some, in elements
};

}  // namespace fusedops::program
