#pragma once

#include "core/declaration/view.h"

namespace fusedops::xla_binding {

// A row-major view without gaps, the layout of all tensors of TensorFlow and XLA. `strides` has room for `rank` of
// them.
inline View dense_view(void* data, DType dtype, int rank, const int64_t* sizes, int64_t* strides) {
  int64_t stride = 1;
  for (int d = rank - 1; d >= 0; stride *= sizes[d--]) strides[d] = stride;
  return {data, dtype, rank, sizes, strides};
}

}  // namespace fusedops::xla_binding
