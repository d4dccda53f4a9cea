// Main loop of gemm_sm90.cuh: a producer thread copies operand tiles through TMA into a ring in shared memory, and
// consumer warpgroups multiply them.
#pragma once

#include "core/cuda/sm90/tma.cuh"
#include "ops/products/gemm_tiles_sm90.cuh"

namespace fusedops::cuda {

// Copies lines of an operand. Lines along k are one box; others are copied in pieces of 64 elements, since a box has at
// most 128 bytes of a line.
template <class S, bool kAlong, int kSize, bool kMulticasts>
__forceinline__ __device__ void copy_lines(const CUtensorMap& map, uint64_t* full, typename S::T* to, int line, int k,
                                           int matrix) {
  constexpr uint16_t kBoth = 0b11;
#pragma unroll
  for (int i = 0; i < kSize; i += kAlong ? kSize : S::kLines) {
    const int x = kAlong ? k : line + i, y = kAlong ? line + i : k;
    if constexpr (kMulticasts)
      cute::SM90_TMA_LOAD_MULTICAST_3D::copy(&map, full, kBoth, sm90::kCacheHint, to + i * S::kDepth, x, y, matrix);
    else
      cute::SM90_TMA_LOAD_3D::copy(&map, full, sm90::kCacheHint, to + i * S::kDepth, x, y, matrix);
  }
}

// Copies the operands of a work tile. Each block of a pair multicasts half of the columns: those of one matrix if the
// tile has columns of two matrices b.
template <class S, class Call>
__forceinline__ __device__ void copy_tile(const Call& call, typename S::Shared& shared, typename S::State& state,
                                          const WorkTile& tile) {
  constexpr int kHalf = S::kColumns / S::kCluster;
  static_assert(S::kWeights == 1 || S::kWeights == S::kCluster);
  const int rank = S::kIsPaired ? int(blockIdx.x % 2) : 0;
  const CUtensorMap& of_b = call.b[S::kWeights == 1 ? 0 : rank];
  const int column = S::kWeights == 1 ? tile.column + rank * kHalf : tile.column;
  const int matrix_a = call.has_matrices_a ? tile.matrix : 0, matrix_b = call.has_matrices_b ? tile.matrix : 0;
#pragma unroll 1
  for (int k = 0; k < call.k; k += S::kDepth, ++state) {
    uint64_t* const full = shared.ring.acquire(state, /*leads=*/true, S::kStageBytes);
    copy_lines<S, S::kRowsAlongK, S::kRows, false>(call.a, full, shared.a[state.stage], tile.row, k, matrix_a);
    copy_lines<S, S::kAlongK, kHalf, S::kIsPaired>(of_b, full, shared.b[state.stage] + rank * kHalf * S::kDepth, column,
                                                   k, matrix_b);
  }
}

// Marks a stage as empty in both blocks of a pair, since both copy into it. Called by whole warpgroups.
template <class S>
__forceinline__ __device__ void release_stage(typename S::Shared& shared, int stage) {
  if constexpr (S::kIsPaired) {
    const int thread = threadIdx.x % sm90::kWarpgroup;
    if (thread < S::kCluster) shared.ring.empty[stage].arrive(/*cta_id=*/thread);
  } else {
    shared.ring.release(stage);
  }
}

struct NothingOnFull {
  __device__ void operator()(int) const {}
};

// Accumulates the k-tiles of a work tile for a warpgroup whose rows begin at `row`. Calls on_issue() between issue and
// completion of the last product, and on_full(i) when k-tile i is in shared memory.
template <class S, class OnIssue, class OnFull = NothingOnFull>
__forceinline__ __device__ void multiply_tile(typename S::Shared& shared, typename S::State& state, int k_tiles,
                                              int row, typename S::Sums& sums, OnIssue&& on_issue,
                                              OnFull&& on_full = OnFull()) {
  const auto first_a = sm90::line_operand<S::kRowsAlongK, S::kRows, S::kDepth>(shared.a[0], row);
  const auto first_b = sm90::line_operand<S::kAlongK, S::kColumns, S::kDepth>(shared.b[0]);
  int last = 0;
#pragma unroll
  for (auto& of_product : sums) sm90::fence_registers(of_product);
#pragma unroll 1
  for (int i = 0; i < k_tiles; ++i) {
    shared.ring.wait(state);
    on_full(i);
    const auto a = first_a + state.stage * sm90::line_offset<S::kDepth>(S::kRows);
    const auto b = first_b + state.stage * sm90::line_offset<S::kDepth>(S::kColumns);
    cute::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < a.kKBlocks; ++k)
#pragma unroll
      for (int product = 0; product < S::kProducts; ++product)
        sm90::multiply_k_block<typename S::T, a.kMajor, b.kMajor>(
            (a + product * sm90::line_offset<S::kDepth>(64)).at(k), b.at(k), sums[product], /*adds=*/i > 0 || k > 0);
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<1>();  // the previous stage has been read
    if (i > 0) release_stage<S>(shared, last);
    last = state.stage;
    ++state;
  }
  on_issue();
  cute::warpgroup_wait<0>();
  release_stage<S>(shared, last);
#pragma unroll
  for (auto& of_product : sums) sm90::fence_registers(of_product);
}

}  // namespace fusedops::cuda
