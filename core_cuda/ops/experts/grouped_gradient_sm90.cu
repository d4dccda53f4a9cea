// Gradients of the matrices of 16-bit grouped products on compute capability 9.x: one product for each group, whose
// depth is the rows of the group. Limit: the tensor cores.
#include "ops/experts/grouped_tiles_sm90.cuh"

namespace fusedops::cuda {
namespace {

struct GradientCall {
  GroupTiles tiles;
  TileScheduler scheduler;  // the matrices are the groups
  GroupRows a, b;
  void* c;
  int m, n;
};

// Rows of the groups that a work tile sums over.
struct GradientRows {
  __device__ GradientRows(const GradientCall& call, const WorkTile& tile)
      : first(call.tiles.bounds[tile.matrix]), end(call.tiles.bounds[tile.matrix + 1]) {}

  int first, end;
};

template <class S>
__forceinline__ __device__ void produce_gradient(const GradientCall& call, typename S::Shared& shared) {
  typename S::State state;
  FullStages<S> full(shared);
#pragma unroll 1
  for (int work = blockIdx.x; work < call.scheduler.count(); work += gridDim.x) {
    const WorkTile tile = work_tile<S>(call.scheduler, work);
    const GradientRows rows(call, tile);
    RowCopies<typename S::T, S::kDepth, S::kRows> a, next_a;
    RowCopies<typename S::T, S::kDepth, S::kColumns> b, next_b;
    a.find(call.a, rows.first, rows.end);
    b.find(call.b, rows.first, rows.end);
#pragma unroll 1
    for (int k = rows.first; k < rows.end; k += S::kDepth, ++state) {
      // The numbers of the next rows are loaded early.
      next_a.find(call.a, k + S::kDepth, rows.end);
      next_b.find(call.b, k + S::kDepth, rows.end);
      shared.ring.empty[state.stage].wait(state.phase ^ 1);
      a.copy(shared.a[state.stage], call.a, tile.row, call.m);
      b.copy(shared.b[state.stage], call.b, tile.column, call.n);
      full.add(state.stage);
      a = next_a, b = next_b;
    }
  }
  full.finish();
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) grouped_gradient_sm90_kernel(const GradientCall call) {
  using T = typename S::T;
  using Panels = PanelRows<T>;
  constexpr int kPanels = S::kColumns / Panels::kColumns;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  run_warpgroups<S>(
      shared, [&] { produce_gradient<S>(call, shared); },
      [&](int group, typename S::Sums& sums, char* staged) {
        const int row = group * (S::kRows / S::kConsumers);
        typename S::State state;
#pragma unroll 1
        for (int work = blockIdx.x; work < call.scheduler.count(); work += gridDim.x) {
          const WorkTile tile = work_tile<S>(call.scheduler, work);
          const GradientRows rows(call, tile);
          const int number = tile.row + row + int(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 16);
          const Panels panels(staged, number < call.m ? number : -1);
          const auto store = [&](int panel, auto&& value) {
            T* const c = static_cast<T*>(call.c) + int64_t(tile.matrix) * call.m * call.n;
            panels.store(c, tile.column + panel * Panels::kColumns, call.n, call.n, value);
          };
          if (rows.first == rows.end) {
            for (int panel = 0; panel < kPanels; ++panel) store(panel, [](int) { return 0.0f; });
            continue;
          }
          multiply_tile<S>(shared, state, (rows.end - rows.first + S::kDepth - 1) / S::kDepth, row, sums, [] {});
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel)
            store(panel, [&](int i) { return sums[0][panel * Panels::kValues + i]; });
        }
      });
}

template <class T>
Status run(const GroupedGradient& product, const GroupTiles& tiles, const Context& context) {
  using S = Gemm<T, GroupedTiles<1>, false, false, PanelRows<T>::kBytes>;
  const GradientCall call = {
      .tiles = tiles,
      .scheduler = TileScheduler(int(ceil_div(product.m, S::kRows)), int(ceil_div(product.n, S::kColumns)),
                                 int(product.groups.groups)),
      .a = product.a,
      .b = product.b,
      .c = product.c,
      .m = int(product.m),
      .n = int(product.n)};
  return launch_grouped_sm90<S>(context, grouped_gradient_sm90_kernel<S>, call.scheduler.count(), call);
}

}  // namespace

Status grouped_sm90(const GroupedGradient& product, const GroupTiles& tiles, const Context& context) {
  return product.dtype == DType::f16 ? run<f16>(product, tiles, context) : run<bf16>(product, tiles, context);
}

}  // namespace fusedops::cuda
