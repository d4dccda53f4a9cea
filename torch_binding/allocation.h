// Memory for outputs, workspaces and copies.
#pragma once

#include "tensors.h"

namespace fusedops::torch_binding {

// An uninitialised row-major tensor, whose rows may be padded_row() apart. Throws what torch.empty_strided throws:
// torch.OutOfMemoryError on a GPU.
Tensor empty(DType dtype, const int64_t* sizes, int rank, Device device, bool padded = false);

// The same values, row-major.
Tensor contiguous(const Tensor& tensor, const View& view, Device device);

}  // namespace fusedops::torch_binding
