// Launches of grouped products: the list of tiles, then the kernel that grouped_dispatch.h chooses.
#include <cub/block/block_scan.cuh>

#include "core/cuda/gpu.h"
#include "core/cuda/launch.cuh"
#include "ops/experts/grouped_kernels.h"

namespace fusedops {
namespace cuda {
namespace {

constexpr int kListThreads = 1024;

// One block, a thread for each range of rows: those before the first offset, the groups, and those past the last
// offset.
__global__ void __launch_bounds__(kListThreads) list_groups_kernel(const Groups groups, const GroupTiles list) {
  using Scan = cub::BlockScan<int, kListThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage memory;
  begin_kernel();
  const auto max = [](int a, int b) { return a > b ? a : b; };
  const int64_t ranges = groups.groups + 2;
  const int count = int(groups.count);
  int rows_before = 0, tiles_before = 0;
  for (int64_t chunk = 0; chunk < ranges; chunk += kListThreads) {
    const int64_t range = chunk + threadIdx.x;
    const int offset = range <= groups.groups ? min(max(groups.offsets[range], 0), count) : count;
    int first, last, tile, tiles;
    Scan(memory).ExclusiveScan(offset, first, rows_before, max, last);
    __syncthreads();
    const int end = max(first, offset);
    const int of_range = range < ranges ? int(ceil_div(end - first, kGroupTileRows)) : 0;
    Scan(memory).ExclusiveSum(of_range, tile, tiles);
    __syncthreads();
    if (range <= groups.groups) list.bounds[range] = end;
    const int64_t group = range == 0 ? groups.groups : range - 1;
    for (int i = 0; i < of_range; ++i) {
      const int at = first + i * kGroupTileRows, rows = min(end - at, kGroupTileRows);
      list.tiles[tiles_before + tile + i] = {at, at + rows, int(group)};
    }
    rows_before = max(rows_before, last);
    tiles_before += tiles;
  }
  if (threadIdx.x == 0) *list.count(groups.groups) = tiles_before;
}

template <class Product>
Status multiply(Product product, void* workspace, const Context& context) {
  GpuProperties gpu;
  FUSEDOPS_TRY(current_gpu(&gpu));
  const GroupedEntry& entry = choose_grouped(representative(product), gpu);
  log_kernel(entry, gpu);
  if (entry.kernel == GroupedKernel::none) return {};
  if (!product.groups.tiles) {
    product.groups.tiles = workspace;
    FUSEDOPS_TRY(list_tiles_cuda(product.groups, context));
  }
  const GroupTiles tiles(product.groups);
  switch (entry.kernel) {
#ifdef FUSEDOPS_SM90
    case GroupedKernel::sm90:
      return grouped_sm90(product, tiles, context);
#endif
    case GroupedKernel::f64:
      return grouped_f64(product, tiles, context);
    case GroupedKernel::f32:
      return grouped_f32(product, tiles, context);
    default:
      return grouped_16(product, tiles, context);
  }
}

}  // namespace
}  // namespace cuda

Status list_tiles_cuda(const Groups& groups, const Context& context) {
  return cuda::launch(context, cuda::list_groups_kernel, 1, cuda::kListThreads, groups, GroupTiles(groups));
}

Status multiply_groups_cuda(const GroupedMatmul& product, void* workspace, const Context& context) {
  return cuda::multiply(product, workspace, context);
}

Status multiply_groups_cuda(const GroupedGradient& product, void* workspace, const Context& context) {
  return cuda::multiply(product, workspace, context);
}

Status grouped_matmul_cuda(const Call& call) {
  return multiply_groups_cuda(GroupedMatmul::of(call), call.workspace, call.context);
}

Status grouped_matmul_backward_cuda(const Call& call) {
  return multiply_groups_cuda(GroupedGradient::of(call), call.workspace, call.context);
}

}  // namespace fusedops
