// Between torch's tensors and the core's views.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <string>

#include "core/declaration/rule.h"
#include "core/declaration/view.h"

namespace fusedops::torch_binding {

torch::headeronly::ScalarType scalar_type(DType dtype);
DType dtype_of(const torch::stable::Tensor& tensor);

View view_of(const torch::stable::Tensor& tensor);

// A rule's shape of a tensor that is there.
void describe(const View& view, Shape* shape);

struct Device {
  int32_t type, index;
  bool operator==(const Device&) const = default;
};

Device device_of(const torch::stable::Tensor& tensor);
std::string name_of(Device device);

}  // namespace fusedops::torch_binding
