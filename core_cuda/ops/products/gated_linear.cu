#include "core/cuda/gpu.h"
#include "ops/products/matmul_kernels.h"

namespace fusedops {

Status gated_linear_cuda(const Call& call) {
  GpuProperties gpu;
  FUSEDOPS_TRY(cuda::current_gpu(&gpu));
  const GatedLinear linear(call);
  const auto& entry = cuda::choose_gated_linear(linear, gpu);
  log_kernel(entry, gpu);
#ifdef FUSEDOPS_SM90
  if (entry.kernel == cuda::GatedLinearKernel::sm90) return cuda::gated_linear_sm90(linear, call.context);
#endif
  return gated_linear_in_parts(call);
}

}  // namespace fusedops
