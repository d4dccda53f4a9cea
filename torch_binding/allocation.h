// Memory for outputs, workspaces and copies.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "tensors.h"

namespace fusedops::torch_binding {

// An uninitialised row-major tensor. Throws what torch.empty_strided throws: torch.OutOfMemoryError on a GPU.
torch::stable::Tensor empty(DType dtype, const int64_t* sizes, int rank, Device device);

// The same values, row-major.
torch::stable::Tensor contiguous(const torch::stable::Tensor& tensor, const View& view, Device device);

}  // namespace fusedops::torch_binding
