#include "core/cuda/divisor.cuh"
#include "core/cuda/launch.cuh"
#include "ops/products/matmul_backward.h"

namespace fusedops {
namespace cuda {
namespace {

// Limit: memory bandwidth if lines are long. Reads and writes each element once.
template <class Unit>
struct GatherCall {
  const Unit* from;
  Unit* to;
  Divisor size, inner;
  int64_t outer_stride, inner_stride, count;
};

template <class Unit>
__global__ void __launch_bounds__(kThreads) gather_kernel(const GatherCall<Unit> call) {
  begin_kernel();
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= call.count) return;
  const auto [line, unit] = call.size.divide(i);
  const auto [outer, inner] = call.inner.divide(line);
  call.to[i] = call.from[outer * call.outer_stride + inner * call.inner_stride + unit];
}

template <class Unit>
Status gather_units(const Gather& gather, const Context& context) {
  constexpr int64_t kSize = sizeof(Unit);
  const int64_t size = gather.size / kSize, count = gather.outer * gather.inner * size;
  const GatherCall<Unit> call = {
      static_cast<const Unit*>(gather.from), static_cast<Unit*>(gather.to), Divisor(size), Divisor(gather.inner),
      gather.outer_stride / kSize,           gather.inner_stride / kSize,   count};
  return launch(context, gather_kernel<Unit>, (count + kThreads - 1) / kThreads, kThreads, call);
}

// Copies in the widest units that divide all addresses, strides and sizes.
Status gather(const Gather& gather, const Context& context) {
  const int64_t all = static_cast<int64_t>(reinterpret_cast<uintptr_t>(gather.from)) | gather.outer_stride |
                      gather.inner_stride | gather.size;
  if (all % 16 == 0) return gather_units<int4>(gather, context);
  if (all % 8 == 0) return gather_units<int2>(gather, context);
  if (all % 4 == 0) return gather_units<int>(gather, context);
  return gather_units<short>(gather, context);
}

}  // namespace
}  // namespace cuda

Status matmul_backward_cuda(const Call& call) {
  const MatmulBackward backward(call);
  void* const workspace = static_cast<char*>(call.workspace) + backward.gathered_bytes;
  if (backward.da) FUSEDOPS_TRY(multiply_cuda(*backward.da, workspace, call.context));
  for (int i = 0; i < backward.gathered; ++i) FUSEDOPS_TRY(cuda::gather(backward.gathers[i], call.context));
  if (backward.db) FUSEDOPS_TRY(multiply_cuda(*backward.db, workspace, call.context));
  return {};
}

}  // namespace fusedops
