// Sorted copies of gathered rows. Limit: memory bandwidth.
#include "core/cuda/divisor.cuh"
#include "core/cuda/gpu.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "ops/experts/copied_rows.h"

namespace fusedops {
namespace cuda {
namespace {

constexpr int kCopiedPacks = 4;  // of a thread, from as many rows

// A thread copies the same pack of kCopiedPacks rows, so that its loads overlap.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(const CopiedRows step, int64_t count, const Divisor packs) {
  begin_kernel();
  const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= count) return;
  const auto [rows, pack] = packs.divide(thread);
  const int64_t i = pack * kPackSize<T>, first = rows * kCopiedPacks;
  Pack<T> copied[kCopiedPacks];
#pragma unroll
  for (int j = 0; j < kCopiedPacks; ++j) {
    const int64_t number = step.from.rows[min(first + j, step.count - 1)];
    copied[j] =
        load_row_pack<kAligned>(static_cast<const T*>(step.from.data) + number * step.from.stride + i, step.size - i);
  }
#pragma unroll
  for (int j = 0; j < kCopiedPacks; ++j)
    if (first + j < step.count)
      store_row_pack<kAligned>(copied[j], static_cast<T*>(step.to) + (first + j) * step.size + i, step.size - i);
}

}  // namespace
}  // namespace cuda

bool prefers_copied_rows_cuda() {
  GpuProperties gpu;
  return cuda::current_gpu(&gpu).ok() && gpu.has_sm90_kernels;
}

Status run_cuda(const CopiedRows& step, const Context& context) {
  return dispatch(step.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int64_t kPack = cuda::kPackSize<T>;
    const int64_t packs = (step.size + kPack - 1) / kPack;
    const int64_t count = (step.count + cuda::kCopiedPacks - 1) / cuda::kCopiedPacks * packs;
    if (count == 0) return Status();
    const bool aligned = step.size % kPack == 0 && step.from.stride % kPack == 0 && cuda::is_aligned(step.from.data) &&
                         cuda::is_aligned(step.to);
    const auto kernel = aligned ? cuda::copy_rows_kernel<T, true> : cuda::copy_rows_kernel<T, false>;
    return cuda::launch(context, kernel, (count + cuda::kThreads - 1) / cuda::kThreads, cuda::kThreads, step, count,
                        cuda::Divisor(packs));
  });
}

}  // namespace fusedops
