// The gradient of a bias in 16 bits on compute capability 9.x, for biases that TMA loads. Limit: reading q, k, v and dy
// from L2.
//
// A block takes tiles of the matrices of the bias. Of each it sums p * (dp - delta) over the heads that share the
// matrix, in order, and over tiles of queries if they share a row. Scores and dp are computed again: two products for
// each tile. A producer warp copies pairs of left and right operands into a ring and runs ahead into the next tile.
// Each consumer warpgroup has 64 queries, and the sums in registers.
#include "ops/attention/attention_bias.cuh"
#include "ops/attention/attention_sm90_masked.cuh"

namespace fusedops::cuda {
namespace sm90 {

template <class Value>
struct Dbias {
  using T = Value;
  static constexpr int kSize = 128, kD = 128;  // queries, and keys; features
  static constexpr int kConsumers = 2, kThreads = kWarpgroup * (1 + kConsumers);
  static constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
  static constexpr int kStages = 3, kWarps = kWarpgroup / 32;
  using Tile = RowTile<kSize, kD>;
  using BiasRows = SwizzledTile<64, kSize>;
  using State = RingState<kStages>;
  static constexpr uint32_t kStageBytes = 2 * Tile::kSize * sizeof(T);

  // One head's part of a sum.
  struct Step {
    enum Kind { inner, last, empty };  // empty: the only one of a tile without a visible score

    int b, head, query, key;  // the first ones
    Kind kind;
  };
  static constexpr int kSteps = 2 * kStages;

  struct alignas(1024) Shared {
    alignas(1024) T left[kStages][Tile::kSize];   // q or dy
    alignas(1024) T right[kStages][Tile::kSize];  // k or v
    alignas(1024) T bias[kConsumers][BiasRows::kSize];
    Ring<kStages> ring;
    Ring<1> bias_ring[kConsumers];
    Step steps[kSteps];
  };

  struct Parameters {
    Attention call;
    CUtensorMap q, dy, k, v;
    BiasLoads bias;
    BiasMatrices matrices;
    HeadRows lse, deltas;
    int rows;  // of lse and deltas in a sequence
    int tiles;
    float factor;
  };

  // Calls body(step) for the steps of a tile.
  template <class Body>
  static __device__ void for_each_step(const Parameters& parameters, const BiasTile& tile, Body&& body) {
    const Attention& call = parameters.call;
    Step next{.kind = Step::empty};
    for (int64_t n = 0; n < parameters.matrices.sharing_heads; ++n) {
      const int64_t head = parameters.matrices.heads.row_at(tile.place, n);
      const int b = static_cast<int>(head / call.heads);
      const Sequence sequence = call.sequence(b);
      for (int query = tile.queries.begin; query < tile.queries.end; query += kSize) {
        const Range seen = call.band.keys(sequence, Range{query, min(query + kSize, sequence.queries)});
        if (seen.is_empty() || tile.keys.begin >= seen.end || tile.keys.end <= seen.begin) continue;
        if (next.kind != Step::empty) body(next);
        next = {b, static_cast<int>(head % call.heads), query, tile.keys.begin, Step::inner};
      }
    }
    if (next.kind == Step::inner) next.kind = Step::last;
    body(next);
  }

  template <class Body>
  static __device__ void for_each_tile(const Parameters& parameters, Body&& body) {
    for (int index = blockIdx.x; index < parameters.tiles; index += gridDim.x)
      body(BiasTile(parameters.call, parameters.matrices, index, kSize, kSize));
  }

  static __device__ void produce(const Parameters& parameters, Shared& shared) {
    const Attention& call = parameters.call;
    const bool is_leader = threadIdx.x % 32 == 0;
    State state;
    int count = 0;
    for_each_tile(parameters, [&](const BiasTile& tile) {
      for_each_step(parameters, tile, [&](const Step& step) {
        if (is_leader) shared.steps[count % kSteps] = step;
        ++count;
        const auto load = [&](const CUtensorMap& left, const CUtensorMap& right) {
          uint64_t* const barrier = shared.ring.acquire(state, is_leader, kStageBytes);
          if (is_leader) {
            load_tile<Tile>(left, barrier, step.query, step.head, step.b, shared.left[state.stage]);
            load_tile<Tile>(right, barrier, step.key, call.key_head(step.head), step.b, shared.right[state.stage]);
          }
          ++state;
        };
        if (step.kind == Step::empty) {
          shared.ring.acquire(state, is_leader, 0);
          ++state;
          return;
        }
        load(parameters.q, parameters.k);
        load(parameters.dy, parameters.v);
      });
    });
  }

  static __device__ void produce_bias(const Parameters& parameters, Shared& shared) {
    RingState<1> state;
    for_each_tile(parameters, [&](const BiasTile& tile) {
#pragma unroll
      for (int consumer = 0; consumer < kConsumers; ++consumer)
        load_bias<BiasRows, 64, kSize>(parameters.bias, tile.place, shared.bias_ring[consumer], state,
                                       tile.queries.begin + consumer * 64, tile.keys.begin, shared.bias[consumer]);
      ++state;
    });
  }

  static __device__ void consume(const Parameters& parameters, Shared& shared) {
    const Attention& call = parameters.call;
    const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
    const int warpgroup = cutlass::canonical_warp_group_idx() - 1;
    const Fragment fragment(thread);
    const auto left = Tile::rows(shared.left, warpgroup * 64), right = Tile::rows(shared.right);
    const BiasUnit bias_unit(parameters.factor);
    const T* const bias_tile = shared.bias[warpgroup];
    const bool has_rows = parameters.matrices.has_rows;
    State state;
    RingState<1> bias_state;
    int count = 0;
    for_each_tile(parameters, [&](const BiasTile& tile) {
      float sums[kSize / 2] = {};
      shared.bias_ring[warpgroup].wait(bias_state);
      ++bias_state;
      for (bool is_last = false; !is_last;) {
        shared.ring.wait(state);
        const Step step = shared.steps[count++ % kSteps];
        if (step.kind == Step::empty) {
          shared.ring.release(state.stage);
          ++state;
          if (has_rows && lane == 0) shared.bias_ring[warpgroup].empty[0].arrive();
          break;
        }
        is_last = step.kind == Step::last;
        float p[kSize / 2], dp[kSize / 2];
        multiply<T, /*kAdds=*/false>(left + state.stage * Tile::kOffset, right + state.stage * Tile::kOffset, p);
        const int stage = state.stage;
        ++state;
        shared.ring.wait(state);
        multiply<T, /*kAdds=*/false>(left + state.stage * Tile::kOffset, right + state.stage * Tile::kOffset, dp);
        const Sequence sequence = call.sequence(step.b);
        const int first_query = step.query + warpgroup * 64;
        float lse[2], delta[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int query = first_query + fragment.row(r);
          const bool has_row = query < parameters.rows;
          lse[r] = has_row ? *parameters.lse.template row<const float>(step.b, query, step.head) : INFINITY;
          delta[r] = has_row ? *parameters.deltas.template row<const float>(step.b, query, step.head) : 0;
        }
        uint32_t visible[2] = {~0u, ~0u};  // of 32 keys, as in RowBits
        const Range of_all =
            call.band.keys_of_all(sequence, Range{first_query, min(first_query + 64, sequence.queries)});
        bool needs_care = of_all.begin > step.key || of_all.end < step.key + kSize;
        if (needs_care) {
          const int key = step.key + lane % 4 * 32;
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const Range keys = call.band.keys(sequence, first_query + fragment.row(r));
            visible[r] = bits_of({keys.begin - key, keys.end - key});
          }
        }
        wait_for<1>(p);
        shared.ring.release(stage);
#pragma unroll
        for (int part = 0; part < kSize / 32; ++part) {
          float numbers[16];
          load_bias_rows<BiasRows>(parameters.bias, bias_tile, thread / 32 * 16, part * 32, numbers);
          needs_care |= bias_unit.add(numbers, reinterpret_cast<float (&)[16]>(p[part * 16]));
        }
        if (is_last) {
          __syncwarp();
          if (has_rows && lane == 0) shared.bias_ring[warpgroup].empty[0].arrive();
        }
        const auto probability = [&](int i) {
          return exp2_or_zero(at_most_zero(fmaf(p[i], parameters.factor, -lse[i / 2 % 2])));
        };
        if (!needs_care) {
#pragma unroll
          for (int i = 0; i < kSize / 2; ++i) p[i] = probability(i);
          wait_for<0>(dp);
          shared.ring.release(state.stage);
#pragma unroll
          for (int i = 0; i < kSize / 2; ++i) sums[i] = fmaf(p[i], dp[i] - delta[i / 2 % 2], sums[i]);
        } else {
          RowBits<kSize>{{visible[0], visible[1]}}.each(
              [&](int i, bool is_visible) { p[i] = !is_visible || p[i] == -INFINITY ? 0 : probability(i); });
          wait_for<0>(dp);
          shared.ring.release(state.stage);
#pragma unroll
          for (int i = 0; i < kSize / 2; ++i)  // behind a hidden score, dp may be NaN
            if (p[i] != 0) sums[i] = fmaf(p[i], dp[i] - delta[i / 2 % 2], sums[i]);
        }
        ++state;
      }
      if (has_rows)
        store_rows_of(parameters, tile, fragment, warpgroup, sums);
      else
        store_row(parameters, tile, shared, warpgroup, sums);
    });
  }

  // Stores the sums of rows. The lanes of a quad exchange pairs, so that each has 8 adjacent keys.
  static __forceinline__ __device__ void store_rows_of(const Parameters& parameters, const BiasTile& tile,
                                                       const Fragment& fragment, int warpgroup,
                                                       float (&sums)[kSize / 2]) {
    const int in_quad = threadIdx.x % 4;
    uint32_t words[kSize / 4];
    round_to<T>(words, sums);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = tile.queries.begin + warpgroup * 64 + fragment.row(r);
      T* const row = static_cast<T*>(parameters.call.dbias) + tile.place + int64_t(query) * parameters.matrices.columns;
#pragma unroll
      for (int group = 0; group < kSize / 32; ++group) {
        uint32_t four[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) four[i] = words[(group * 4 + i) * 2 + r];
        const auto exchange = [&](int low, int high, int step) {
          const bool is_high = in_quad & step;
          const uint32_t got = __shfl_xor_sync(0xffffffff, is_high ? four[low] : four[high], step);
          is_high ? four[low] = got : four[high] = got;
        };
        exchange(0, 1, 1), exchange(2, 3, 1), exchange(0, 2, 2), exchange(1, 3, 2);
        const int key = tile.keys.begin + (group * 4 + in_quad) * 8;
        if (query < tile.queries.end && key < tile.keys.end)
          *reinterpret_cast<uint4*>(row + key) = make_uint4(four[0], four[1], four[2], four[3]);
      }
    }
  }

  // Sums over rows, in the order of warps, and stores one row. The memory of the bias is free.
  static __forceinline__ __device__ void store_row(const Parameters& parameters, const BiasTile& tile, Shared& shared,
                                                   int warpgroup, float (&sums)[kSize / 2]) {
    const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
    const auto memory = [&](int warpgroup) { return reinterpret_cast<float*>(shared.bias[warpgroup]); };
    cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 0);  // all warps have read the bias
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) {
      if (i / 2 % 2) continue;
      float sum = sums[i] + sums[i + 2];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
      if (lane < 4) memory(warpgroup)[thread / 32 * kSize + i / 4 * 8 + lane * 2 + i % 2] = sum;
    }
    cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 0);
    const int key = tile.keys.begin + thread;
    if (warpgroup == 0) {
      float sum = 0;
      for (int i = 0; i < kConsumers * kWarps; ++i) sum += memory(i / kWarps)[i % kWarps * kSize + thread];
      if (key < tile.keys.end) static_cast<T*>(parameters.call.dbias)[tile.place + key] = from_compute<T>(sum);
    }
    cutlass::arch::fence_view_async_shared();
    cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, 0);
    if (lane == 0) shared.bias_ring[warpgroup].empty[0].arrive();
  }

  static __device__ void run(const Parameters& parameters, Shared& shared) {
    if (threadIdx.x == 0) {
      for (const CUtensorMap* map : {&parameters.q, &parameters.k, &parameters.v, &parameters.dy, &parameters.bias.map})
        cute::prefetch_tma_descriptor(map);
      shared.ring.init(kConsumers);
      for (Ring<1>& ring : shared.bias_ring) ring.init(kWarps);
    }
    cutlass::arch::fence_barrier_init();
    __syncthreads();
    begin_kernel();
    if (cutlass::canonical_warp_group_idx() == 0) {
      cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      if (threadIdx.x / 32 == 0) produce(parameters, shared);
      if (threadIdx.x / 32 == 1) produce_bias(parameters, shared);
    } else {
      cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      consume(parameters, shared);
    }
  }
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1)
    attention_dbias_sm90_kernel(const __grid_constant__ typename Kernel::Parameters parameters) {
  extern __shared__ __align__(1024) char memory[];
  Kernel::run(parameters, *reinterpret_cast<typename Kernel::Shared*>(memory));
}

template <class Kernel>
Status launch_dbias(const Attention& call, const HeadRows& lse, const HeadRows& deltas, int rows,
                    const Context& context) {
  using Tile = typename Kernel::Tile;
  typename Kernel::Parameters parameters{.call = call,
                                         .matrices = BiasMatrices(call),
                                         .lse = lse,
                                         .deltas = deltas,
                                         .rows = rows,
                                         .factor = factor_of(call)};
  parameters.tiles = static_cast<int>(bias_tiles(parameters.matrices, Kernel::kSize, Kernel::kSize));
  FUSEDOPS_TRY(BiasLoads::of<64>(call, &parameters.bias));
  FUSEDOPS_TRY((describe_inputs<Tile, Tile>(call, call.sequences, Kernel::kSize, Kernel::kSize, &parameters)));
  const int blocks = std::min(parameters.tiles, device_attribute(cudaDevAttrMultiProcessorCount));
  return launch(context, attention_dbias_sm90_kernel<Kernel>,
                Grid{blocks, Kernel::kThreads, sizeof(typename Kernel::Shared)}, parameters);
}

}  // namespace sm90

Status attention_dbias_sm90(const Attention& call, const HeadRows& lse, const HeadRows& deltas, int rows,
                            const Context& context) {
  return call.dtype == DType::f16 ? sm90::launch_dbias<sm90::Dbias<f16>>(call, lse, deltas, rows, context)
                                  : sm90::launch_dbias<sm90::Dbias<bf16>>(call, lse, deltas, rows, context);
}

}  // namespace fusedops::cuda
