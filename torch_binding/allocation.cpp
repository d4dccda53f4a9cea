#include "allocation.h"

#include <algorithm>
#include <optional>

#include "errors.h"

namespace fusedops::torch_binding {

using torch::headeronly::ScalarType;

namespace {

struct Request {
  int64_t rank;
  const int64_t *sizes, *strides;
  ScalarType dtype;
  Device device;
};

// at::_ops::empty_strided::call, with types of the same memory layout as torch's C++ types.
struct Ints {
  const int64_t* data;
  size_t size;
};
struct Place {
  int8_t type, index;
};
struct Result {  // an at::Tensor; the destructor makes the ABI return it in memory
  void* impl;
  ~Result() {}
};
using EmptyStrided = Result (*)(Ints sizes, Ints strides, std::optional<ScalarType> dtype, std::optional<int8_t> layout,
                                std::optional<Place> device, std::optional<bool> pinned);
constexpr const char* kEmptyStrided =
    "_ZN2at4_ops13empty_strided4callEN3c108ArrayRefINS2_6SymIntEEES5_St8optionalINS2_10ScalarTypeEES6_INS2_6LayoutEES6_"
    "INS2_6DeviceEES6_IbE";

// Repeats a failed request with torch's C++ function, whose exceptions reach Python with type and message. The stable
// ABI has no such function, so it is looked up by name. Null if this version of torch does not have it.
AtenTensorHandle repeat(const Request& request) {
  const auto function = reinterpret_cast<EmptyStrided>(find_in_torch("libtorch_cpu.so", kEmptyStrided));
  if (!function) return nullptr;
  const auto rank = static_cast<size_t>(request.rank);
  const Place place{static_cast<int8_t>(request.device.type), static_cast<int8_t>(request.device.index)};
  auto* result = new Result(
      function({request.sizes, rank}, {request.strides, rank}, request.dtype, std::nullopt, place, std::nullopt));
  return reinterpret_cast<AtenTensorHandle>(result);  // a handle is an at::Tensor*
}

std::string description(const Request& request) {
  std::string sizes;
  for (int64_t i = 0; i < request.rank; ++i) sizes += (i ? ", " : "") + std::to_string(request.sizes[i]);
  return "allocate a tensor of shape [" + sizes + "] on " + name_of(request.device);
}

}  // namespace

Tensor empty(DType dtype, const int64_t* sizes, int rank, Device device, bool padded) {
  int64_t strides[kMaxRank], stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= std::max<int64_t>(padded && i == rank - 1 ? padded_row(sizes[i], dtype) : sizes[i], 1);
  }
  const Request request{rank, sizes, strides, scalar_type(dtype), device};
  const auto type = torch::stable::detail::to<int32_t>(torch::stable::detail::from(request.dtype));
  AtenTensorHandle handle = nullptr;
  const AOTITorchError code = aoti_torch_empty_strided(rank, sizes, strides, type, device.type, device.index, &handle);
  if (code != TORCH_SUCCESS) handle = repeat(request);
  if (!handle) require(code, description(request).c_str());
  return Tensor(handle);
}

Tensor contiguous(const Tensor& tensor, const View& view, Device device) {
  Tensor copy = empty(view.dtype, view.sizes, view.rank, device);
  require(aoti_torch_copy_(copy.get(), tensor.get(), /*non_blocking=*/0), "copy a tensor");
  return copy;
}

}  // namespace fusedops::torch_binding
