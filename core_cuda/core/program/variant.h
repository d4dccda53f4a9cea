// The plan for a program on the tensors of a GPU call: the compiled variant and the assignment of elements to blocks.
// It depends on shapes, dtypes and alignment only; the order of every sum depends on shapes and dtypes only.
#pragma once

#include <cstring>
#include <string>

#include "core/program/geometry.h"

namespace fusedops::program {

// The compile-time parameters of a kernel. Zeroed before it is filled in, since it is compared bytewise.
struct Variant {
  DType dtype;
  bool aligned;  // every row begins at an aligned address, and every pack is whole or the last one
  bool whole;    // rows are whole packs
  bool chunked;  // rows are too long for registers
  bool single_row;
  bool several;  // a thread processes several rows sequentially
  bool tiled;    // a block processes a part of the columns
  uint16_t threads, across, held, dims;
  uint16_t blocks;  // minimum blocks per multiprocessor
  Access input[kMaxInputs];
  bool along_columns[kMaxInputs];
  bool late[kMaxInputs];  // no reduction reads the input: it need not be in registers meanwhile
  Type input_type[kMaxInputs];
  Access output[kMaxOutputs];
  Type output_type[kMaxOutputs];
  bool of_rows[kMaxOutputs];  // the result has one value per row

  Variant() { std::memset(static_cast<void*>(this), 0, sizeof *this); }
  std::string bytes() const { return {reinterpret_cast<const char*>(this), sizeof *this}; }
  std::string source(const Program& program) const;  // for NVRTC
};

struct LaunchPlan {
  // The processing of a result after the kernel.
  enum class FinalSum : uint8_t { none, chunks, partials, folded };

  Geometry geometry;
  Variant variant;
  int64_t chunks, rows_per_chunk, tiles;
  FinalSum final_sum[kMaxOutputs];
  int64_t offset[kMaxOutputs];  // in the workspace, for results that are summed after the kernel
  int64_t workspace = 0;        // bytes

  static Status make(const Call& call, LaunchPlan* plan);
};

}  // namespace fusedops::program
