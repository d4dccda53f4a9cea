// Copies of matrices of 16 bits whose lines do not begin at multiples of 16 bytes.
//
// The hardware has no asynchronous copy for such lines, so that a product which reads them as they are is limited by
// its loads. Copies in the workspace, whose lines are aligned, take one pass over the matrix, and each element is then
// read by fast copies as often as there are tiles. A matrix with aligned lines that TMA cannot read whole is copied,
// too, where that takes less time than a product of what is left.
//
// Not copied: matrices of a product without a workspace, single ones of a batch and lines that are too large, as
// aligned_copies.cpp says.
#pragma once

#include "ops/products/matmul.h"

namespace fusedops {

// Which matrices of a product are copied, so that it takes less time in all. This follows from the shape and the
// strides alone, as the size of the workspace must.
struct AlignedCopies {
  explicit AlignedCopies(const Matmul& product);

  bool any() const { return of_a || of_b; }
  size_t bytes_of_a() const { return of_a ? (a_is_shared ? 1 : matrices) * rows * bytes_of_line() : 0; }
  size_t bytes_of_b() const { return of_b ? (b_is_shared ? 1 : matrices) * columns * bytes_of_line() : 0; }
  size_t bytes() const { return bytes_of_a() + bytes_of_b(); }
  size_t bytes_of_line() const { return size_t(stride) * 2; }

  bool of_a = false, of_b = false;
  bool is_misaligned = false;       // false: other GPUs than 9.x read both matrices as they are
  int64_t matrices, rows, columns;  // of the batch and of c at a time, so that copies take little memory
  bool a_is_shared, b_is_shared;    // by all matrices of the batch
  int64_t stride;                   // between lines of a copy, which run along k
};

namespace cuda {

// The rows of `batch` matrices [rows, columns] of 16-bit elements, one after the other. `to` and its stride are
// multiples of 16 bytes. What becomes of the elements between a row and the next is not defined.
struct LineCopy {
  Matmul::Matrix from = {};
  int64_t batch = 0, rows = 0, columns = 0;  // no rows: nothing is copied
  void* to = nullptr;
  int64_t to_stride = 0;
};

Status copy_lines(const LineCopy& first, const LineCopy& second, const Context& context);

}  // namespace cuda
}  // namespace fusedops
