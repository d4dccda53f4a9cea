// The slots of experts, sorted by expert, and the list of their tiles. Few slots are sorted by one block. Many are
// sorted in a launch of their own. Limit: each expert's block reads all indices from L2 twice.
#include "core/cuda/divisor.cuh"
#include "core/cuda/launch.cuh"
#include "ops/experts/expert_order.cuh"

namespace fusedops {
namespace cuda {
namespace {

constexpr int kSortWarps = 32;

// The block's expert; the last block has the slots without one. Each warp has consecutive slots.
__global__ void __launch_bounds__(32 * kSortWarps) sort_slots_kernel(const ExpertOrder order, const Divisor per_token) {
  __shared__ int lesser_of[kSortWarps], equal_of[kSortWarps];
  begin_kernel();
  constexpr unsigned kAll = 0xffffffff;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, expert = blockIdx.x;
  const int64_t slots = order.index.slots, of_warp = (slots + 32 * kSortWarps - 1) / (32 * kSortWarps) * 32;
  const int64_t first = warp * of_warp, end = min(first + of_warp, slots);
  const auto expert_of = [&](int64_t slot) {
    const int found = order.index.expert(slot);
    return found < 0 ? int(order.index.experts) : found;
  };

  int lesser = 0, equal = 0;
#pragma unroll 16
  for (int64_t slot = first + lane; slot < end; slot += 32) {
    const int found = expert_of(slot);
    lesser += found < expert;
    equal += found == expert;
  }
  lesser = __reduce_add_sync(kAll, lesser);
  equal = __reduce_add_sync(kAll, equal);
  if (lane == 0) lesser_of[warp] = lesser, equal_of[warp] = equal;
  __syncthreads();
  const int offset = __reduce_add_sync(kAll, lesser_of[lane]);
  int row = offset + __reduce_add_sync(kAll, lane < warp ? equal_of[lane] : 0);
  if (threadIdx.x == 0) order.offsets[expert] = offset;

#pragma unroll 8
  for (int64_t chunk = first; chunk < end; chunk += 32) {
    const int64_t slot = chunk + lane;
    const bool is_equal = slot < end && expert_of(slot) == expert;
    const unsigned mask = __ballot_sync(kAll, is_equal);
    if (is_equal) {
      const int at = row + __popc(mask & ((1u << lane) - 1));
      order.order[at] = int(slot);
      order.tokens[at] = int(per_token.divide(slot).quotient);
      order.rows[slot] = at;
    }
    row += __popc(mask);
  }
}

constexpr int kFewThreads = 512;

__global__ void __launch_bounds__(kFewThreads) sort_few_slots_kernel(const FewSlots few) {
  extern __shared__ int counts_memory[];
  begin_kernel();
  few.sort<kFewThreads>(counts_memory);
}

}  // namespace
}  // namespace cuda

Status run_cuda(const ExpertOrder& step, const Context& context) {
  if (cuda::FewSlots::accepts(step)) {
    const cuda::FewSlots few(step);
    const cuda::Grid grid = {.blocks = 1, .threads = cuda::kFewThreads, .shared_bytes = few.shared_bytes()};
    return cuda::launch(context, cuda::sort_few_slots_kernel, grid, few);
  }
  FUSEDOPS_TRY(cuda::launch(context, cuda::sort_slots_kernel, step.index.experts + 1, 32 * cuda::kSortWarps, step,
                            cuda::Divisor(std::max<int64_t>(step.per_token, 1))));
  return list_tiles_cuda(step.groups(), context);
}

}  // namespace fusedops
