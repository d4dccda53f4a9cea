// A tensor as the core sees it: a pointer into memory that the framework owns, and how to walk it.
#pragma once

#include <cstdint>
#include <optional>

#include "core/declaration/dtype.h"

namespace fusedops {

inline constexpr int kMaxRank = 64;  // more is refused: Rule::check_rank

// What an operator can read in place. Anything else is copied to contiguous memory by the adaptor before the call.
enum class Layout : uint8_t {
  contiguous,  // row-major without gaps
  rows,        // the last dimension is unit-stride; the leading ones share one stride, from row to row
  rows_apart,  // rows that do not overlap, as those of a matrix
  matrix,  // the last two dimensions: one is unit-stride, the other spaced apart; the leading ones: one common stride
  heads,   // the last dimension is unit-stride, the two before it are free; the leading ones share one stride
};

struct View {
  void* data = nullptr;
  DType dtype = DType::other;
  int rank = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;  // in elements

  int64_t numel() const {
    int64_t product = 1;
    for (int i = 0; i < rank; ++i) product *= sizes[i];
    return product;
  }
};

bool has_layout(const View& view, Layout layout);

// Layout::rows: the last dimension is a row.
struct Rows {
  int64_t count = 0;
  int64_t size = 0;    // elements of a row
  int64_t stride = 0;  // from row to row, in elements
};

Rows as_rows(const View& view);  // of a view of that layout; a scalar is one row

// The distance between the rows of a padded output: a multiple of 16 bytes, if elements have 16 bits. No kernel for
// wider ones needs it.
inline constexpr int64_t kPadded = 8;
inline int64_t padded_row(int64_t size, DType dtype) {
  return size_of(dtype) == 2 ? (size + kPadded - 1) / kPadded * kPadded : size;
}

// Layout::heads: rows in three dimensions, such as batch, position and head.
struct Heads {
  int64_t sizes[3];    // the leading dimensions as one, then the two before the last
  int64_t strides[3];  // between rows, in elements
  int64_t size;        // elements of a row
};

Heads as_heads(const View& view);  // of a view of that layout, with at least one dimension

struct MatrixStrides {
  bool row_major;        // rows are of unit stride, else columns are
  int64_t stride;        // between rows, or between columns
  int64_t batch_stride;  // between matrices; 0: one for all
};

// How to walk a view as Layout::matrix; nothing if that cannot be.
std::optional<MatrixStrides> as_matrix(const View& view);

}  // namespace fusedops
