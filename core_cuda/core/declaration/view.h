// A tensor as the core sees it: memory that the framework owns, with sizes and strides.
#pragma once

#include <cstdint>
#include <optional>

#include "core/declaration/dtype.h"

namespace fusedops {

inline constexpr int kMaxRank = 64;  // larger ranks are refused: Rule::check_rank

// The layouts that an operator can read in place. Bindings copy other layouts to contiguous memory before the call.
enum class Layout : uint8_t {
  contiguous,  // row-major without gaps
  rows,        // the last dimension is unit-stride; the leading ones share one row stride
  rows_apart,  // rows that do not overlap, like those of a matrix
  matrix,  // the last two dimensions: one is unit-stride, the other has any stride; the leading ones share one stride
  heads,   // the last dimension is unit-stride, the two before it have any strides; the leading ones share one stride
};

// True if the last dimension must be unit-stride.
constexpr bool has_rows(Layout layout) { return layout != Layout::contiguous && layout != Layout::matrix; }

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

Rows as_rows(const View& view);  // for Layout::rows; a scalar is one row

// The row stride of a padded output: a multiple of 16 bytes for 16-bit elements; wider ones need no padding.
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

Heads as_heads(const View& view);  // for Layout::heads, with at least one dimension

struct MatrixStrides {
  bool row_major;        // rows are unit-stride, else columns are
  int64_t stride;        // between rows, or between columns
  int64_t batch_stride;  // between matrices; 0: one matrix for all
};

// The strides of a view with Layout::matrix; none for other views.
std::optional<MatrixStrides> as_matrix(const View& view);

}  // namespace fusedops
