// Converts torch's tensors to the core's views.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <memory>
#include <string>

#include "core/declaration/rule.h"
#include "core/declaration/view.h"

namespace fusedops::torch_binding {

struct DeleteHandle {
  void operator()(AtenTensorHandle handle) const { aoti_torch_delete_tensor_object(handle); }
};

// Unique ownership of a handle. torch::stable::Tensor has shared ownership and allocates memory for it, too slow for
// lists of thousands of tensors.
using Tensor = std::unique_ptr<AtenTensorOpaque, DeleteHandle>;

torch::headeronly::ScalarType scalar_type(DType dtype);

// If `written`, torch first materializes a lazy copy (torch._lazy_clone) on the current device.
View view_of(const Tensor& tensor, bool written = false);

// Sets the shape of a present tensor.
void describe(const View& view, Shape* shape);

struct Device {
  int32_t type, index;
  bool operator==(const Device&) const = default;
};

Device device_of(const Tensor& tensor);
std::string name_of(Device device);

}  // namespace fusedops::torch_binding
