#include "tensors.h"

#include <algorithm>
#include <array>

#include "errors.h"

namespace fusedops::torch_binding {

using torch::headeronly::ScalarType;

namespace {

constexpr struct {
  ScalarType torch;
  DType core;
} kPairs[] = {
    {ScalarType::Float, DType::f32},
    {ScalarType::BFloat16, DType::bf16},
    {ScalarType::Half, DType::f16},
    {ScalarType::Double, DType::f64},
    {ScalarType::Bool, DType::boolean},
    {ScalarType::Byte, DType::u8},
    {ScalarType::Char, DType::i8},
    {ScalarType::Short, DType::i16},
    {ScalarType::Int, DType::i32},
    {ScalarType::Long, DType::i64},
    {ScalarType::ComplexFloat, DType::c64},
    {ScalarType::ComplexDouble, DType::c128},
    {ScalarType::Float8_e4m3fn, DType::f8_e4m3fn},
    {ScalarType::Float8_e5m2, DType::f8_e5m2},
};

// Compares the numbers of torch's C interface: the conversion to a ScalarType throws for dtypes that it does not know.
DType core_type(int32_t dtype) {
  static const auto numbers = [] {
    std::array<int32_t, std::size(kPairs)> found;
    for (size_t i = 0; i < found.size(); ++i)
      found[i] = torch::stable::detail::to<int32_t>(torch::stable::detail::from(kPairs[i].torch));
    return found;
  }();
  for (size_t i = 0; i < numbers.size(); ++i)
    if (numbers[i] == dtype) return kPairs[i].core;
  return DType::other;
}

}  // namespace

ScalarType scalar_type(DType dtype) {
  for (const auto& pair : kPairs)
    if (pair.core == dtype) return pair.torch;
  return ScalarType::Undefined;
}

View view_of(const Tensor& tensor, bool written) {
  int32_t dtype = 0;
  int64_t rank = 0, *sizes = nullptr, *strides = nullptr;
  void* data = nullptr;
  const void* only_read = nullptr;
  const AOTITorchError codes[] = {
      aoti_torch_get_dtype(tensor.get(), &dtype), aoti_torch_get_dim(tensor.get(), &rank),
      aoti_torch_get_sizes(tensor.get(), &sizes), aoti_torch_get_strides(tensor.get(), &strides),
      written ? torch_get_mutable_data_ptr(tensor.get(), &data) : torch_get_const_data_ptr(tensor.get(), &only_read)};
  for (const AOTITorchError code : codes) require(code, "look at a tensor");
  // The core writes only to views of outputs and of mutated inputs.
  return {written ? data : const_cast<void*>(only_read), core_type(dtype), static_cast<int>(rank), sizes, strides};
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
