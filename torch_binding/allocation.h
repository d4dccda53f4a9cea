// Memory for outputs, workspaces and copies.
#pragma once

#include "tensors.h"

namespace fusedops::torch_binding {

// An uninitialised row-major tensor. If `padded`, its row stride is padded_row(). Throws as torch.empty_strided does:
// torch.OutOfMemoryError on a GPU.
Tensor empty(DType dtype, const int64_t* sizes, int rank, Device device, bool padded = false);

// A row-major copy of a tensor.
Tensor contiguous(const Tensor& tensor, const View& view, Device device);

}  // namespace fusedops::torch_binding
