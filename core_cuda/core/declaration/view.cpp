#include "core/declaration/view.h"

#include <algorithm>

namespace fusedops {
namespace {

// True if dimensions [first, last) can be walked as one dimension whose innermost stride is `stride`. The stride of a
// dimension of one element is irrelevant.
bool collapses(const View& view, int first, int last, int64_t stride) {
  for (int i = last - 1; i >= first; --i) {
    if (view.sizes[i] == 1) continue;
    if (view.strides[i] != stride) return false;
    stride *= view.sizes[i];
  }
  return true;
}

// The stride of the innermost of the first `count` dimensions with more than one element.
int64_t innermost_stride(const View& view, int count, int64_t otherwise) {
  for (int i = count - 1; i >= 0; --i)
    if (view.sizes[i] != 1) return view.strides[i];
  return otherwise;
}

}  // namespace

bool has_layout(const View& view, Layout layout) {
  if (view.numel() == 0) return true;
  if (layout == Layout::matrix) return as_matrix(view).has_value();
  if ((layout == Layout::rows || layout == Layout::rows_apart) && view.rank > 0) {
    const int last = view.rank - 1;
    const Rows rows = as_rows(view);
    if (layout == Layout::rows_apart && rows.count > 1 && rows.stride < rows.size) return false;
    return (view.sizes[last] == 1 || view.strides[last] == 1) && collapses(view, 0, last, rows.stride);
  }
  if (layout == Layout::heads && view.rank > 0) {
    const int last = view.rank - 1;
    return (view.sizes[last] == 1 || view.strides[last] == 1) &&
           collapses(view, 0, last - 2, innermost_stride(view, last - 2, 0));
  }
  return collapses(view, 0, view.rank, 1);
}

Rows as_rows(const View& view) {
  if (view.rank == 0) return {1, 1, 1};
  const int last = view.rank - 1;
  Rows rows{1, view.sizes[last], innermost_stride(view, last, view.sizes[last])};
  for (int i = 0; i < last; ++i) rows.count *= view.sizes[i];
  return rows;
}

Heads as_heads(const View& view) {
  const int last = view.rank - 1, leading = last - 2;
  Heads heads{{1, 1, 1}, {innermost_stride(view, leading, 0), 0, 0}, view.sizes[last]};
  for (int i = 0; i < leading; ++i) heads.sizes[0] *= view.sizes[i];
  for (int i = std::max(leading, 0); i < last; ++i) {
    heads.sizes[i - leading + 1] = view.sizes[i];
    heads.strides[i - leading + 1] = view.strides[i];
  }
  return heads;
}

std::optional<MatrixStrides> as_matrix(const View& view) {
  if (view.rank < 2) return {};
  const int64_t rows = view.sizes[view.rank - 2], cols = view.sizes[view.rank - 1];
  const int64_t row_stride = view.strides[view.rank - 2], col_stride = view.strides[view.rank - 1];
  MatrixStrides result{true, 0, 0};
  // A single row or column has an arbitrary stride; kernels need one that does not overlap.
  if ((cols <= 1 || col_stride == 1) && (rows <= 1 || row_stride >= cols))
    result.stride = rows <= 1 ? cols : row_stride;
  else if ((rows <= 1 || row_stride == 1) && (cols <= 1 || col_stride >= rows))
    result = {false, cols <= 1 ? rows : col_stride, 0};
  else
    return {};
  // The leading dimensions share the stride of the innermost one that has any.
  for (int i = view.rank - 3; i >= 0; --i) {
    if (view.sizes[i] == 1) continue;
    result.batch_stride = view.strides[i];
    if (!collapses(view, 0, i + 1, result.batch_stride)) return {};
    break;
  }
  return result;
}

}  // namespace fusedops
