// Epilogues of matmul_swap_ab_sm90.cuh.
#pragma once

#include <cooperative_groups.h>

#include <cstring>

#include "ops/products/swap_ab_ring_sm90.cuh"

namespace fusedops::cuda {

// The epilogue of persistent blocks, with no more than a bias: stores c chunk by chunk through shared memory and TMA,
// which overlaps with the next tile's products.
//
// A warp has 16 columns. Of each 8 rows, a thread holds two adjacent ones, in one column and in the column 8 further;
// stmatrix transposes each 8 x 8.
template <class S>
__device__ void store_tile(typename S::Shared& shared, const typename S::Sums& sums, const SwapAbWork<S>& work,
                           const CUtensorMap& tiles_of_c) {
  using T = typename S::T;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const uint32_t group = threadIdx.x / 128;
  const auto line = [&](auto* staged, int row) -> cute::uint128_t& {
    return *reinterpret_cast<cute::uint128_t*>(staged + row * S::kLines + ((warp * 2 + lane / 8 % 2) ^ row % 8) * 8);
  };
#pragma unroll
  for (int first = 0; first < S::kRows; first += S::kStagedRows) {
    cute::tma_store_wait<0>();  // the previous chunk has been read
    cutlass::arch::NamedBarrier::sync(128, group);
#pragma unroll
    for (int product = 0; product < S::kProducts; ++product) {
      const int piece = product * S::kWarpgroups + int(group);
      const int column = work.column + piece * S::kLines + warp * 16 + lane / 4;
      float bias[2] = {};
      if (const T* const all = work.call.epilogue.bias)
        for (int j = 0; j < 2; ++j)
          if (column + j * 8 < work.call.n) bias[j] = to_compute(all[column + j * 8]);
      const auto pair = [&](int i) {
        float of_rows[2] = {sums[product][i], sums[product][i + 1]};
        if (work.call.epilogue.bias)
          for (float& sum : of_rows) sum += bias[i / 2 % 2];
        const T rounded[2] = {from_compute<T>(of_rows[0]), from_compute<T>(of_rows[1])};
        uint32_t bits;
        memcpy(&bits, rounded, sizeof bits);
        return bits;
      };
      auto* const staged = shared.staged[piece];
#pragma unroll
      for (int row = 0; row < S::kStagedRows && first + row < S::kRows; row += 16) {
        const int i = (first + row) / 2;
        if (row + 8 < S::kStagedRows && first + row + 8 < S::kRows)
          cute::SM90_U16x8_STSM_T::copy(pair(i), pair(i + 2), pair(i + 4), pair(i + 6),
                                        line(staged, row + lane / 16 * 8 + lane % 8));
        else
          cute::SM90_U16x4_STSM_T::copy(pair(i), pair(i + 2), line(staged, row + lane % 8));
      }
    }
    cute::tma_store_fence();
    cutlass::arch::NamedBarrier::sync(128, group);
    // One thread per 8 rows stores them and waits for the store.
    if (const int row = lane * 8; warp < S::kProducts && row < S::kStagedRows && first + row < work.call.rows) {
      const int piece = warp * S::kWarpgroups + int(group);
      cute::SM90_TMA_STORE_2D::copy(&tiles_of_c, shared.staged[piece] + row * S::kLines,
                                    work.column + piece * S::kLines, work.row + first + row);
      cute::tma_store_arrive();
    }
  }
}

// Writes the sums of a tile for finish_tile to the memory of the ring, which is free now.
template <class S>
__device__ void spread_sums(float* all, const typename S::Sums& sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int product = 0; product < S::kProducts; ++product)
#pragma unroll
    for (int i = 0; i < S::kRows / 2; ++i) {
      const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
      const int column = product * S::kWarpgroups * S::kLines + warp * 16 + lane / 4 + i / 2 % 2 * 8;
      all[row * S::kSumPitch + column] = sums[product][i];
    }
}

// The other epilogue: adds the sums of all splits and stores c. The splits take the rows in turn. A consumer has four
// adjacent columns and takes four rows at a time: the branch for the activation then costs little, and each formula is
// compiled only twice.
template <class S>
__device__ void finish_tile(const float* all, const SwapAbWork<S>& work) {
  using T = typename S::T;
  const SwapAbCall<T>& call = work.call;
  constexpr int kPack = 4, kPacks = S::kColumns / kPack, kRowsAtOnce = S::kConsumers / kPacks;
  struct alignas(kPack * sizeof(T)) Pack {
    T values[kPack];
  };
  const int in_tile = threadIdx.x % kPacks * kPack, column = work.column + in_tile;
  if (column >= call.n) return;
  float bias[kPack] = {};
  if (call.epilogue.bias)
#pragma unroll
    for (int j = 0; j < kPack; ++j)
      if (column + j < call.n) bias[j] = to_compute(call.epilogue.bias[column + j]);
  const bool has_one_split = !S::kCanSplit || call.k_splits == 1;
  const float* partials_of[kMaxKSplits];
  if (!has_one_split)
#pragma unroll
    for (int split = 0; split < kMaxKSplits; ++split)
      if (split < call.k_splits)
        partials_of[split] = cooperative_groups::this_cluster().map_shared_rank(all + in_tile, split);

  const int next = call.k_splits * kRowsAtOnce;  // stride between the rows of a thread
  const auto finish_rows = [&]<int kCount>(std::integral_constant<int, kCount>, int row) {
    float sums[kCount][kPack] = {};
    const auto add = [&](int i, const float4& split) {
      sums[i][0] += split.x;
      sums[i][1] += split.y;
      sums[i][2] += split.z;
      sums[i][3] += split.w;
    };
    const auto load = [&](const float* from, int i) {
      return *reinterpret_cast<const float4*>(from + (row + i * next) * S::kSumPitch);
    };
    if (has_one_split) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) add(i, load(all + in_tile, i));
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        float4 partials[kMaxKSplits];
#pragma unroll
        for (int split = 0; split < kMaxKSplits; ++split)
          if (split < call.k_splits) partials[split] = load(partials_of[split], i);
#pragma unroll
        for (int split = 0; split < kMaxKSplits; ++split)
          if (split < call.k_splits) add(i, partials[split]);
      }
    }
    const auto store = [&](T* to) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int64_t at = int64_t(work.row + row + i * next) * call.c_stride + column;
        Pack pack;
#pragma unroll
        for (int j = 0; j < kPack; ++j) pack.values[j] = from_compute<T>(sums[i][j]);
        if (call.store_packs)
          *reinterpret_cast<Pack*>(to + at) = pack;
        else
#pragma unroll
          for (int j = 0; j < kPack; ++j)
            if (column + j < call.n) to[at + j] = pack.values[j];
      }
    };
    if (call.epilogue.bias)
#pragma unroll
      for (auto& of_row : sums)
#pragma unroll
        for (int j = 0; j < kPack; ++j) of_row[j] += bias[j];
    if (call.epilogue.z) store(call.epilogue.z);
    activations::dispatch(call.epilogue.activation, [&](auto chosen) {
#pragma unroll
      for (auto& of_row : sums)
#pragma unroll
        for (float& sum : of_row) sum = decltype(chosen)::at(sum).value;
    });
    store(call.c);
  };
  int row = work.split * kRowsAtOnce + threadIdx.x / kPacks;
  for (; row + 3 * next < call.rows; row += 4 * next) finish_rows(std::integral_constant<int, 4>(), row);
  for (; row < call.rows; row += next) finish_rows(std::integral_constant<int, 1>(), row);
}

}  // namespace fusedops::cuda
