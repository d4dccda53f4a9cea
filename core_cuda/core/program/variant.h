// How the GPU runs a program on the tensors of one call: what the kernel is compiled for, and how its blocks share the
// elements. It follows from shapes, dtypes and alignment alone; the order of every sum, from shapes and dtypes.
#pragma once

#include <cstring>
#include <string>

#include "core/program/geometry.h"

namespace fusedops::program {

// What a compiled kernel is for. Zeroed before it is filled in, and compared byte by byte.
struct Variant {
  DType dtype;
  bool aligned;  // every row begins at an aligned address, and a pack that is there is there as a whole or the last
  bool whole;    // rows are whole packs
  bool chunked;  // rows are too long for registers
  bool single_row;
  bool several;  // a thread takes several rows, one after the other
  bool tiled;    // a block has a part of the columns
  uint16_t threads, across, held, dims;
  uint16_t blocks;  // that a multiprocessor shall have room for
  Access input[kMaxInputs];
  bool along_columns[kMaxInputs];
  bool late[kMaxInputs];  // no reduction reads it: it need not be in registers while they are computed
  Type input_type[kMaxInputs];
  Access output[kMaxOutputs];
  Type output_type[kMaxOutputs];
  bool of_rows[kMaxOutputs];  // a result that is the same for all of a row

  Variant() { std::memset(static_cast<void*>(this), 0, sizeof *this); }
  std::string bytes() const { return {reinterpret_cast<const char*>(this), sizeof *this}; }
  std::string source(const Program& program) const;  // what NVRTC compiles
};

struct Plan {
  // What becomes of a result behind the kernel.
  enum class Rest : uint8_t { none, slabs, partials, folded };

  Geometry geometry;
  Variant variant;
  int64_t slabs, rows_per_slab, tiles;
  Rest rest[kMaxOutputs];
  int64_t offset[kMaxOutputs];  // in the workspace, of what is summed behind the kernel
  int64_t workspace = 0;        // bytes

  static Status make(const Call& call, Plan* plan);
};

}  // namespace fusedops::program
