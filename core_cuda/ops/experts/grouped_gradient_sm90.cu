// Gradients of the matrices of 16-bit grouped products on compute capability 9.x: one product for each group, whose
// depth is the rows of the group. Limit: the tensor cores; for few rows, the stores.
#include "ops/experts/grouped_tiles_sm90.cuh"

namespace fusedops::cuda {
namespace {

// A cluster of two blocks has a tile of 256 x 256. They share the 256 lines of one operand, the wide one, which they
// multicast; it must not be gathered, for then each block would copy all of it. Each block has 128 lines of the other.
template <bool kHasWideRows>
using GradientTiles =
    TileShape<kHasWideRows ? 128 : 256, Schedule::cooperative, true, /*kWeights=*/1, kHasWideRows ? 256 : 128>;

struct GradientCall {
  CUtensorMap a_map, b_map, c_map;
  GroupTiles tiles;
  TileScheduler scheduler;  // the matrices are the groups
  GroupRows a, b;
  int m, n;
};

// The block's work tiles, and the rows [first, end) of the groups that each one sums over.
template <class S>
class GradientWork {
 public:
  static constexpr int kSide = 256;  // of a cluster's tile

  __device__ explicit GradientWork(const GradientCall& call) : call_(call), at_(blockIdx.x / S::kCluster) {
    load();
    next();
  }

  __device__ bool is_done() const { return at_ - stride() >= call_.scheduler.count(); }

  __device__ void next() {
    tile = next_, first = next_first_, end = next_end_;
    at_ += stride();
    load();
  }

  WorkTile tile;
  int first, end;

 private:
  static __device__ int stride() { return int(gridDim.x) / S::kCluster; }

  __device__ void load() {
    if (at_ >= call_.scheduler.count()) return;
    const WorkTile of_cluster = call_.scheduler.at(at_);
    const int rank = blockIdx.x % S::kCluster;
    next_ = {of_cluster.row * kSide + rank * (S::kRows % kSide),
             of_cluster.column * kSide + rank * (S::kColumns % kSide), of_cluster.matrix};
    next_first_ = call_.tiles.bounds[next_.matrix];
    next_end_ = call_.tiles.bounds[next_.matrix + 1];
  }

  const GradientCall& call_;
  int at_, next_first_, next_end_;  // of the next tile, which is loaded early
  WorkTile next_;
};

// Copies kLines lines of an operand through TMA, half of them if they are shared.
template <class S, int kLines>
__forceinline__ __device__ void copy_shared_lines(const CUtensorMap& map, uint64_t* full, typename S::T* to, int line,
                                                  int k) {
  constexpr bool kIsShared = kLines == GradientWork<S>::kSide;
  constexpr int kCopied = kIsShared ? kLines / S::kCluster : kLines;
  const int first = kIsShared ? int(blockIdx.x % S::kCluster) * kCopied : 0;
  copy_lines<S, false, kCopied, kIsShared>(map, full, to + first * S::kDepth, line + first, k, 0);
}

template <class S>
__forceinline__ __device__ void produce_gradient(const GradientCall& call, typename S::Shared& shared) {
  constexpr int kBytesOfA = S::kRows * S::kDepth * int(sizeof(typename S::T));
  constexpr int kBytesOfB = S::kColumns * S::kDepth * int(sizeof(typename S::T));
  const bool leads = threadIdx.x == S::kConsumerThreads;
  typename S::State state;
  if (leads)
    for (const CUtensorMap* map : {&call.a_map, &call.b_map, &call.c_map}) cute::prefetch_tma_descriptor(map);
  cudaGridDependencySynchronize();
#pragma unroll 1
  for (GradientWork<S> work(call); !work.is_done(); work.next()) {
    RowCopies<typename S::T, S::kDepth, S::kRows, true> a, next_a;
    RowCopies<typename S::T, S::kDepth, S::kColumns, true> b, next_b;
    a.find(call.a, work.first, work.end);
    b.find(call.b, work.first, work.end);
#pragma unroll 1
    for (int k = work.first; k < work.end; k += S::kDepth, ++state) {
      // The numbers of the next rows are loaded early.
      next_a.find(call.a, k + S::kDepth, work.end);
      next_b.find(call.b, k + S::kDepth, work.end);
      const bool is_whole = k + S::kDepth <= work.end;
      const bool loads_a = is_whole && !call.a.rows, loads_b = is_whole && !call.b.rows;  // through TMA
      auto& barrier = shared.ring.full[state.stage];
      shared.ring.empty[state.stage].wait(state.phase ^ 1);
      if (leads && (loads_a || loads_b)) {
        barrier.expect_transaction((loads_a ? kBytesOfA : 0) + (loads_b ? kBytesOfB : 0));
        auto* const of_copies = reinterpret_cast<uint64_t*>(&barrier);
        if (loads_a) copy_shared_lines<S, S::kRows>(call.a_map, of_copies, shared.a[state.stage], work.tile.row, k);
        if (loads_b)
          copy_shared_lines<S, S::kColumns>(call.b_map, of_copies, shared.b[state.stage], work.tile.column, k);
      }
      __syncwarp();
      if (!loads_a) a.copy(shared.a[state.stage], call.a, work.tile.row, call.m);
      if (!loads_b) b.copy(shared.b[state.stage], call.b, work.tile.column, call.n);
      if (loads_a && loads_b)
        arrive_without_copies<S>(shared, state.stage);
      else
        arrive_after_copies<S>(shared, state.stage);
      a = next_a, b = next_b;
    }
  }
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    grouped_gradient_sm90_kernel(const __grid_constant__ GradientCall call) {
  using Stores = PanelStores<typename S::T>;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  run_warpgroups<S, /*kProducerRegisters=*/104>(
      shared, [&] { produce_gradient<S>(call, shared); },
      [&](int group, typename S::Sums& sums, char* staged) {
        const int row = group * (S::kRows / S::kConsumers);
        typename S::State state;
#pragma unroll 1
        for (GradientWork<S> work(call); !work.is_done(); work.next()) {
          const int first = work.tile.row + row + int(threadIdx.x / 32 % 4) * Stores::kRows;
          const auto store = [&](auto&& value) {
            Stores stores(staged, work.tile.matrix);
#pragma unroll
            for (int product = 0; product < S::kProducts; ++product)
#pragma unroll
              for (int panel = 0; panel < S::kColumns / Stores::kColumns; ++panel)
                stores.store(call.c_map, first + product * 64, work.tile.column + panel * Stores::kColumns,
                             [&](int i) { return value(product, panel * Stores::kValues + i); });
          };
          if (work.first == work.end) {
            store([](int, int) { return 0.0f; });
            continue;
          }
          multiply_tile<S>(
              shared, state, (work.end - work.first + S::kDepth - 1) / S::kDepth, row, sums, [] {},
              [&](int i) {
                if (call.a.rows || call.b.rows || work.first + (i + 1) * S::kDepth > work.end) fence_copies();
              });
          store([&](int product, int i) { return sums[product][i]; });
        }
      });
}

template <class T, bool kHasWideRows>
Status launch_with(const GroupedGradient& product, const GroupTiles& tiles, const Context& context) {
  using S = Gemm<T, GradientTiles<kHasWideRows>, false, false, PanelStores<T>::kBytes>;
  constexpr int kSide = GradientWork<S>::kSide;
  const Matmul matrices = representative(product);
  GradientCall call = {.tiles = tiles,
                       .scheduler = TileScheduler(int(ceil_div(product.m, kSide)), int(ceil_div(product.n, kSide)),
                                                  int(product.groups.groups)),
                       .a = product.a,
                       .b = product.b,
                       .m = int(product.m),
                       .n = int(product.n)};
  FUSEDOPS_TRY(describe_lines(matrices, matrices.a, /*along_k=*/false, product.m, S::kLines, &call.a_map));
  FUSEDOPS_TRY(describe_lines(matrices, matrices.b, /*along_k=*/false, product.n, S::kLines, &call.b_map));
  FUSEDOPS_TRY(PanelStores<T>::describe(matrices, product.c, &call.c_map));
  return launch_grouped_sm90<S>(context, grouped_gradient_sm90_kernel<S>, call.scheduler.count(), call);
}

template <class T>
Status run(const GroupedGradient& product, const GroupTiles& tiles, const Context& context) {
  return product.b.rows ? launch_with<T, true>(product, tiles, context)
                        : launch_with<T, false>(product, tiles, context);
}

}  // namespace

Status grouped_sm90(const GroupedGradient& product, const GroupTiles& tiles, const Context& context) {
  return product.dtype == DType::f16 ? run<f16>(product, tiles, context) : run<bf16>(product, tiles, context);
}

}  // namespace fusedops::cuda
