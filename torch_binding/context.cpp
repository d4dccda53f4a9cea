#include "context.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <stdexcept>

#include "errors.h"

namespace fusedops::torch_binding {
namespace {

// Looked up at run time, so that this library loads in a torch without CUDA.
void* current_stream(int32_t device_index) {
  using Function = AOTITorchError (*)(int32_t, void**);
  static const Function function = [] {
    return reinterpret_cast<Function>(find_in_torch("libtorch_cuda.so", "aoti_torch_get_current_cuda_stream"));
  }();
  if (!function) throw std::runtime_error("fusedops: this torch has no CUDA streams");
  void* stream;
  require(function(device_index, &stream), "tell its CUDA stream");
  return stream;
}

void parallel(void*, int64_t count, int64_t cost, Context::Body body, void* closure) {
  constexpr int64_t kMinNsPerThread = 20'000;
  torch::stable::parallel_for(0, count, std::max<int64_t>(1, kMinNsPerThread / cost),
                              [&](int64_t begin, int64_t end) { body(closure, begin, end); });
}

}  // namespace

Context context_for(Device device) {
  Context context;
  context.parallel = parallel;
  context.cuda = device.type == aoti_torch_device_type_cuda();
  if (context.cuda) context.stream = current_stream(device.index);
  return context;
}

}  // namespace fusedops::torch_binding
