// Between torch's tensors and the core's views.
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

// Owns a handle of torch's alone. torch::stable::Tensor shares it, for which it allocates memory: too much work for
// lists of thousands of tensors.
using Tensor = std::unique_ptr<AtenTensorOpaque, DeleteHandle>;

torch::headeronly::ScalarType scalar_type(DType dtype);

// `written`: torch copies the elements first, to the current device, where several tensors share them until one is
// written (torch._lazy_clone).
View view_of(const Tensor& tensor, bool written = false);

// A rule's shape of a tensor that is there.
void describe(const View& view, Shape* shape);

struct Device {
  int32_t type, index;
  bool operator==(const Device&) const = default;
};

Device device_of(const Tensor& tensor);
std::string name_of(Device device);

}  // namespace fusedops::torch_binding
