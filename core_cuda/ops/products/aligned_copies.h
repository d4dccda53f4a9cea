// Copies of matrices of 16 bits whose lines do not begin at multiples of 16 bytes.
//
// The hardware has no asynchronous copy for such lines, so that a product which reads them as they are is limited by
// its loads. Copies in the workspace, whose lines are aligned, take one pass over the matrix, and each element is then
// read by fast copies as often as there are tiles.
#pragma once

#include "ops/products/matmul.h"

namespace fusedops {

// Which matrices of a product are copied, so that it takes less time in all. This follows from the shape and the
// strides alone, as the size of the workspace must.
struct AlignedCopies {
  explicit AlignedCopies(const Matmul& product);

  bool any() const { return of_a || of_b; }
  size_t bytes_of_a() const { return of_a ? a_matrices * rows * bytes_of_line() : 0; }
  size_t bytes_of_b() const { return of_b ? b_matrices * columns * bytes_of_line() : 0; }
  size_t bytes() const { return bytes_of_a() + bytes_of_b(); }
  size_t bytes_of_line() const { return size_t(stride) * 2; }

  bool of_a = false, of_b = false;
  int64_t rows, columns;           // of c at a time, so that a copy of a large matrix takes little memory
  int64_t a_matrices, b_matrices;  // of the batch
  int64_t stride;                  // between lines of a copy, which run along k
};

namespace cuda {

// The rows of `batch` matrices [rows, columns] of 16-bit elements, one after the other. `to` and its stride are
// multiples of 16 bytes. What becomes of the elements between a row and the next is not defined.
struct RowCopy {
  Matmul::Matrix from = {};
  int64_t batch = 0, rows = 0, columns = 0;  // no rows: nothing is copied
  void* to = nullptr;
  int64_t to_stride = 0;
};

Status copy_rows(const RowCopy& first, const RowCopy& second, const Context& context);

}  // namespace cuda
}  // namespace fusedops
