// Preprocessing and postprocessing kernels of attention's backward on compute capability 9.x.
#pragma once

#include "ops/attention/attention_sm90_backward_tiles.cuh"

namespace fusedops::cuda::sm90 {

// Computes delta and the scaled lse, with eight threads per query, including slots behind the end of a sequence.
template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kMasked, Terms kTerms>
__device__ void Backward<Value, kTileQueries, kTileKeys, kFeatures, kMasked, kTerms>::prepare(
    const Parameters& parameters) {
  const Attention& call = parameters.call;
  begin_kernel();
  const int64_t row = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes;
  if (row >= parameters.workspace.slots * kM) return;
  const int64_t slots = parameters.slots.count(), slot = row / kM % slots;
  const int head = static_cast<int>(row / kM / slots);
  if (lane == 0)
    for (int64_t i = row; i < parameters.workspace.key_slots; i += parameters.workspace.slots * kM)
      parameters.workspace.dk_dv_semaphores[i] = 0;
  if (row % kM == 0 && lane == 0) parameters.workspace.dq_semaphores[row / kM] = 0;
  const auto [b, tile] = parameters.slots.at(slot);
  const int query = static_cast<int>(tile * kM + row % kM);
  const Sequence sequence = call.sequence(b);
  float lse = INFINITY, delta = 0;
  if (query < sequence.queries) {
    const int64_t position = sequence.first_query + query, outer = call.offsets_q ? 0 : b;
    const float given = *call.lse.row<float>(outer, position, head);
    const T *y = call.y.row<T>(outer, position, head), *dy = call.dy.row<T>(outer, position, head);
    for (int i = 8 * lane; i < call.dim_v; i += 8 * kLanes) {
      const auto a = *reinterpret_cast<const Pack<T>*>(y + i), c = *reinterpret_cast<const Pack<T>*>(dy + i);
#pragma unroll
      for (int j = 0; j < kPackSize<T>; ++j) delta += element(a, j) * element(c, j);
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) delta += __shfl_xor_sync(__activemask(), delta, step);
    delta = call.delta(delta, outer, position, head);
    // lse stays -inf if all visible scores are -inf: -inf minus -inf is NaN, as are the probabilities.
    if (given > -INFINITY || !call.band.keys(sequence, query).is_empty()) lse = given * static_cast<float>(kLog2E);
  }
  if (lane == 0) {
    parameters.workspace.lse[row] = lse;
    parameters.workspace.delta[row] = delta;
  }
}

// Rounds dq. A block takes a slot; each thread takes the values that it held in the main kernel.
template <class Value, int kTileQueries, int kTileKeys, int kFeatures, bool kMasked, Terms kTerms>
__device__ void Backward<Value, kTileQueries, kTileKeys, kFeatures, kMasked, kTerms>::finish(
    const Parameters& parameters) {
  const Attention& call = parameters.call;
  begin_kernel();
  const int64_t slots = parameters.slots.count(), slot = blockIdx.x % slots;
  const int head = static_cast<int>(blockIdx.x / slots);
  const auto [b, tile] = parameters.slots.at(slot);
  const Sequence sequence = call.sequence(b);
  const int begin = tile * kM, end = begin + kM < sequence.queries ? begin + kM : sequence.queries;
  if (begin >= end) return;
  const Range keys = call.band.keys(sequence, Range{begin, end});
  const bool has_sum = !keys.is_empty() && Tiles(parameters.mask, call, static_cast<int>(b), head)
                                                   .keys(tile, {keys.begin / kN, (keys.end - 1) / kN + 1})
                                                   .count() > 0;
  const int thread = threadIdx.x, warpgroup = thread / kWarpgroup;
  const float* sums = parameters.workspace.dq + int64_t(blockIdx.x) * kM * kD;
  float dq[kDqValues];
#pragma unroll
  for (int i = 0; i < kDqValues; i += 4) {
    const auto four = has_sum ? *reinterpret_cast<const float4*>(sums + i * kConsumers * kWarpgroup + thread * 4)
                              : float4{0, 0, 0, 0};
    dq[i] = four.x, dq[i + 1] = four.y, dq[i + 2] = four.z, dq[i + 3] = four.w;
  }
  __shared__ alignas(1024) T memory[QueryTile::kSize];
  const int first_row = warpgroup % kQueryGroups * 64 + thread % kWarpgroup / 32 * 16;
  const float scale = static_cast<float>(call.scale), factors[2] = {scale, scale};
  T* const rows = call.dq.row<T>(call.batch_index(b), sequence.first_query + begin, head);
  store_rows<QueryTile>(first_row, warpgroup / kQueryGroups * kQueryFeatures, factors, dq, memory, end - begin,
                        call.dim, [&](int row) { return rows + row * call.dq.position; });
}

}  // namespace fusedops::cuda::sm90
