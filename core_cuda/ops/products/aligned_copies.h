// Aligned copies of 16-bit matrices whose lines do not begin at multiples of 16 bytes.
//
// The hardware has no asynchronous copy for such lines, so that loads limit a product that reads them in place. A copy
// in the workspace costs one pass over the matrix; the tiles then read it by fast copies. A matrix with aligned lines
// that TMA cannot read whole is copied too, if that is faster than a product of the remainder.
//
// A product without a workspace gets no copies, nor do matrices of a batch or lines beyond the limit in
// aligned_copies.cpp.
#pragma once

#include "ops/products/matmul.h"

namespace fusedops {

// The matrices of a product that are copied to save time. They depend on shape and strides alone, as the size of the
// workspace must.
struct AlignedCopies {
  explicit AlignedCopies(const Matmul& product);

  bool any() const { return of_a || of_b; }
  size_t bytes_of_a() const { return of_a ? (a_is_shared ? 1 : matrices) * rows * bytes_of_line() : 0; }
  size_t bytes_of_b() const { return of_b ? (b_is_shared ? 1 : matrices) * columns * bytes_of_line() : 0; }
  size_t bytes() const { return bytes_of_a() + bytes_of_b(); }
  size_t bytes_of_line() const { return size_t(stride) * 2; }

  bool of_a = false, of_b = false;
  bool is_misaligned = false;       // false: only 9.x copies
  int64_t matrices, rows, columns;  // chunk of the batch and of c that is computed at a time
  bool a_is_shared, b_is_shared;    // by the whole batch
  int64_t stride;                   // between lines of a copy, which run along k
};

namespace cuda {

// Copies the rows of `batch` matrices [rows, columns] of 16-bit elements. `to` and its stride are multiples of 16
// bytes. Elements between two rows of `to` are undefined.
struct LineCopy {
  Matmul::Matrix from = {};
  int64_t batch = 0, rows = 0, columns = 0;  // no rows: nothing is copied
  void* to = nullptr;
  int64_t to_stride = 0;
};

Status copy_lines(const LineCopy& first, const LineCopy& second, const Context& context);

}  // namespace cuda
}  // namespace fusedops
