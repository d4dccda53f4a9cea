#include "tensors.h"

#include <algorithm>

#include "errors.h"

namespace fusedops::torch_binding {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

namespace {

constexpr struct {
  ScalarType torch;
  DType core;
} kPairs[] = {
    {ScalarType::Float, DType::f32},  {ScalarType::BFloat16, DType::bf16},    {ScalarType::Half, DType::f16},
    {ScalarType::Double, DType::f64}, {ScalarType::Bool, DType::boolean},     {ScalarType::Byte, DType::u8},
    {ScalarType::Char, DType::i8},    {ScalarType::Short, DType::i16},        {ScalarType::Int, DType::i32},
    {ScalarType::Long, DType::i64},   {ScalarType::ComplexFloat, DType::c64}, {ScalarType::ComplexDouble, DType::c128},
};

}  // namespace

ScalarType scalar_type(DType dtype) {
  for (const auto& pair : kPairs)
    if (pair.core == dtype) return pair.torch;
  return ScalarType::Undefined;
}

DType dtype_of(const Tensor& tensor) {
  const ScalarType type = tensor.scalar_type();
  for (const auto& pair : kPairs)
    if (pair.torch == type) return pair.core;
  return DType::other;
}

View view_of(const Tensor& tensor) {
  // The core writes through the views of outputs only.
  return {const_cast<void*>(tensor.const_data_ptr()), dtype_of(tensor), static_cast<int>(tensor.dim()),
          tensor.sizes().data(), tensor.strides().data()};
}

void describe(const View& view, Shape* shape) {
  shape->present = true;
  shape->dtype = view.dtype;
  shape->rank = view.rank;
  std::copy_n(view.sizes, view.rank, shape->dims);
}

Device device_of(const Tensor& tensor) {
  Device device;
  require(aoti_torch_get_device_type(tensor.get(), &device.type), "tell the device of a tensor");
  require(aoti_torch_get_device_index(tensor.get(), &device.index), "tell the device of a tensor");
  return device;
}

std::string name_of(Device device) {
  if (device.type == aoti_torch_device_type_cpu()) return "cpu";
  if (device.type == aoti_torch_device_type_cuda()) return "cuda:" + std::to_string(device.index);
  return "another device";
}

}  // namespace fusedops::torch_binding
