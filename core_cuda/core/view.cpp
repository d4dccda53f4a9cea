#include "core/view.h"

namespace fusedops {
namespace {

// Whether dimensions [first, last) can be walked as one, of stride `stride` for its innermost step. Dimensions of one
// element have no stride to speak of.
bool collapses(const View& view, int first, int last, int64_t stride) {
  for (int i = last - 1; i >= first; --i) {
    if (view.sizes[i] == 1) continue;
    if (view.strides[i] != stride) return false;
    stride *= view.sizes[i];
  }
  return true;
}

bool is_matrix(const View& view) {
  if (view.rank < 2) return false;
  const int64_t rows = view.sizes[view.rank - 2], cols = view.sizes[view.rank - 1];
  const int64_t row_stride = view.strides[view.rank - 2], col_stride = view.strides[view.rank - 1];
  const bool row_major = (cols == 1 || col_stride == 1) && (rows == 1 || row_stride >= cols);
  const bool col_major = (rows == 1 || row_stride == 1) && (cols == 1 || col_stride >= rows);
  if (!row_major && !col_major) return false;
  // The leading dimensions share the stride of the innermost one that has any.
  for (int i = view.rank - 3; i >= 0; --i)
    if (view.sizes[i] != 1) return collapses(view, 0, i + 1, view.strides[i]);
  return true;
}

}  // namespace

bool has_layout(const View& view, Layout layout) {
  if (view.numel() == 0) return true;
  if (layout == Layout::matrix && is_matrix(view)) return true;
  return collapses(view, 0, view.rank, 1);
}

}  // namespace fusedops
