// How matmul_few_tiles_sm90.cuh writes a tile of c.
#pragma once

#include <cooperative_groups.h>

#include <cstring>

#include "ops/products/few_tiles_ring_sm90.cuh"

namespace fusedops::cuda {

// c from a warpgroup's sums, with a bias at most: through shared memory, part by part, and TMA, which writes while the
// next tile is multiplied.
//
// Of 16 columns for each warp, and of each 8 rows, a thread holds the sums of two rows, in one column and in that 8
// further: stmatrix turns each 8 x 8 of them over.
template <class S, class Sums>
__device__ void store_tile(typename S::Shared& shared, const Sums& sums, const FewTilesPlace<S>& place,
                           const cute::TmaDescriptor& tiles_of_c) {
  using T = typename S::T;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const uint32_t group = threadIdx.x / 128;
  const auto line = [&](auto* staged, int row) -> cute::uint128_t& {
    return *reinterpret_cast<cute::uint128_t*>(staged + row * S::kLines + ((warp * 2 + lane / 8 % 2) ^ row % 8) * 8);
  };
#pragma unroll
  for (int first = 0; first < S::kRows; first += S::kStagedRows) {
    cute::tma_store_wait<0>();  // what was there before is read
    cutlass::arch::NamedBarrier::sync(128, group);
#pragma unroll
    for (int product = 0; product < S::kProducts; ++product) {
      const int piece = product * S::kWarpgroups + int(group);
      const int column = place.column + piece * S::kLines + warp * 16 + lane / 4;
      float bias[2] = {};
      if (const T* const all = place.call.epilogue.bias)
        for (int j = 0; j < 2; ++j)
          if (column + j * 8 < place.call.n) bias[j] = to_compute(all[column + j * 8]);
      const auto pair = [&](int i) {
        float of_rows[2] = {sums(i), sums(i + 1)};
        if (place.call.epilogue.bias)
          for (float& sum : of_rows) sum += bias[i / 2 % 2];
        const T rounded[2] = {from_compute<T>(of_rows[0]), from_compute<T>(of_rows[1])};
        uint32_t bits;
        memcpy(&bits, rounded, sizeof bits);
        return bits;
      };
      auto* const staged = shared.staged[piece];
#pragma unroll
      for (int row = 0; row < S::kStagedRows && first + row < S::kRows; row += 16) {
        const int i = (product * S::kRows + first + row) / 2;
        if (row + 8 < S::kStagedRows && first + row + 8 < S::kRows)
          cute::SM90_U16x8_STSM_T::copy(pair(i), pair(i + 2), pair(i + 4), pair(i + 6),
                                        line(staged, row + lane / 16 * 8 + lane % 8));
        else
          cute::SM90_U16x4_STSM_T::copy(pair(i), pair(i + 2), line(staged, row + lane % 8));
      }
    }
    cute::tma_store_fence();
    cutlass::arch::NamedBarrier::sync(128, group);
    // A thread for each 8 rows: it also waits for them.
    if (const int row = lane * 8; warp < S::kProducts && row < S::kStagedRows && first + row < place.call.rows) {
      const int piece = warp * S::kWarpgroups + int(group);
      cute::SM90_TMA_STORE_2D::copy(&tiles_of_c, shared.staged[piece] + row * S::kLines,
                                    place.column + piece * S::kLines, place.row + first + row);
      cute::tma_store_arrive();
    }
  }
}

// The sums of a tile, for finish_tile, in the memory of the ring, which no one reads any more.
template <class S, class Sums>
__device__ void spread_sums(float* all, const Sums& sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int kEach = S::kRows / 2;  // of a product
#pragma unroll
  for (int i = 0; i < int(cute::size(sums)); ++i) {
    const int row = i % kEach / 4 * 8 + lane % 4 * 2 + i % 2;
    const int column = i / kEach * S::kWarpgroups * S::kLines + warp * 16 + lane / 4 + i / 2 % 2 * 8;
    all[row * S::kSumPitch + column] = sums(i);
  }
}

// c from the sums of all parts; kAlone: there is one. A consumer has four neighbouring columns, and the rows of its
// part's turn.
template <class S, bool kAlone>
__device__ void finish_tile(const float* all, const FewTilesPlace<S>& place) {
  using T = typename S::T;
  const FewTilesCall<T>& call = place.call;
  constexpr int kPack = 4, kPacks = S::kColumns / kPack, kRowsAtOnce = S::kConsumers / kPacks;
  constexpr int kParts = kAlone ? 1 : kMostParts;
  struct alignas(kPack * sizeof(T)) Pack {
    T values[kPack];
  };
  const int in_tile = threadIdx.x % kPacks * kPack, column = place.column + in_tile;
  if (column >= call.n) return;
  float bias[kPack] = {};
  if (call.epilogue.bias)
#pragma unroll
    for (int j = 0; j < kPack; ++j)
      if (column + j < call.n) bias[j] = to_compute(call.epilogue.bias[column + j]);
  const float* of_parts[kParts] = {all + in_tile};
  if constexpr (!kAlone)
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      if (part < call.parts) of_parts[part] = cooperative_groups::this_cluster().map_shared_rank(all + in_tile, part);
  // One branch around all sums: for each of them, it would take longer than all else here.
  activations::dispatch(call.epilogue.activation, [&](auto chosen) {
#pragma unroll 4
    for (int row = place.part * kRowsAtOnce + threadIdx.x / kPacks; row < call.rows; row += call.parts * kRowsAtOnce) {
      float4 parts[kParts];
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        if (kAlone || part < call.parts)
          parts[part] = *reinterpret_cast<const float4*>(of_parts[part] + row * S::kSumPitch);
      float sums[kPack] = {};
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        if (kAlone || part < call.parts) {
          sums[0] += parts[part].x;
          sums[1] += parts[part].y;
          sums[2] += parts[part].z;
          sums[3] += parts[part].w;
        }
      const int64_t at = int64_t(place.row + row) * call.c_stride + column;
      const auto store = [&](T* to) {
        Pack pack;
#pragma unroll
        for (int j = 0; j < kPack; ++j) pack.values[j] = from_compute<T>(sums[j]);
        if (call.store_packs)
          *reinterpret_cast<Pack*>(to + at) = pack;
        else
#pragma unroll
          for (int j = 0; j < kPack; ++j)
            if (column + j < call.n) to[at + j] = pack.values[j];
      };
      if (call.epilogue.bias)
#pragma unroll
        for (int j = 0; j < kPack; ++j) sums[j] += bias[j];
      if (call.epilogue.z) store(call.epilogue.z);
#pragma unroll
      for (int j = 0; j < kPack; ++j) sums[j] = decltype(chosen)::at(sums[j]).value;
      store(call.c);
    }
  });
}

}  // namespace fusedops::cuda
