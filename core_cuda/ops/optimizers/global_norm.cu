#include "core/cuda/lists.cuh"
#include "core/cuda/reduce.cuh"
#include "ops/optimizers/global_norm.h"

namespace fusedops {
namespace cuda {
namespace {

// Elements that a thread adds: a pack of 16-bit elements. So gradients have the same norm in float32 and in 16 bits,
// and an optimizer with float32 masters clips as one over float32 does.
constexpr int kThreadElements = 8;

template <class T, bool kAligned>
__device__ compute_t<T> thread_sum(const T* data, int n) {
  constexpr int kPack = kPackSize<T>;
  static_assert(kThreadElements % kPack == 0);
  compute_t<T> sum = 0;
  for (int i = int(threadIdx.x) * kThreadElements; i < n; i += kThreads * kThreadElements) {
    Pack<T> packs[kThreadElements / kPack];
#pragma unroll
    for (int j = 0; j < kThreadElements / kPack; ++j)
      packs[j] = load_pack<kAligned>(data + i + j * kPack, n - i - j * kPack);
#pragma unroll
    for (int k = 0; k < kThreadElements; ++k) {
      const compute_t<T> value = element(packs[k / kPack], k % kPack);
      sum = multiply_add(value, value, sum);
    }
  }
  return sum;
}

// Computes one sum per chunk.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_squares_kernel(const __grid_constant__ PlaceTable<1> table, double* sums) {
  begin_kernel();
  const int at = table.find(static_cast<int>(blockIdx.x));
  const int64_t begin = int64_t(static_cast<int>(blockIdx.x) - table.first_blocks[at]) * kChunk;
  const int n = static_cast<int>(min(kChunk, table.sizes[at] - begin));
  const T* const data = static_cast<const T*>(table.data[0][at]) + begin;
  const bool aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  const compute_t<T> sum = aligned ? thread_sum<T, true>(data, n) : thread_sum<T, false>(data, n);
  const compute_t<T> whole = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = whole;
}

template <class T>
__global__ void __launch_bounds__(kSumThreads) norm_kernel(const double* sums, int64_t count, T* norm) {
  begin_kernel();
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) sum += sums[i];
  sum = block_sum<kSumThreads>(sum);
  if (threadIdx.x == 0) *norm = static_cast<T>(sqrt(sum));
}

}  // namespace
}  // namespace cuda

Status global_norm_cuda(const Call& call) {
  const std::span<const View> lists[] = {call.list(input_of(kGlobalNorm, "tensors"))};
  return dispatch(lists[0][0].dtype, [&](auto tag) -> Status {
    using T = typename decltype(tag)::type;
    auto* const sums = static_cast<double*>(call.workspace);
    int64_t count = 0;
    FUSEDOPS_TRY(cuda::for_each_table(lists, kChunk, [&](const cuda::PlaceTable<1>& table) {
      const int blocks = table.first_blocks[table.count];
      const int64_t first = std::exchange(count, count + blocks);
      return cuda::launch(call.context, cuda::sum_squares_kernel<T>, blocks, cuda::kThreads, table, sums + first);
    }));
    return cuda::launch(call.context, cuda::norm_kernel<compute_t<T>>, 1, cuda::kSumThreads, sums, count,
                        call.output<compute_t<T>>(0));
  });
}

}  // namespace fusedops
