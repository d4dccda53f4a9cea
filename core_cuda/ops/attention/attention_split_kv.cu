// Split-KV attention for few queries over many keys, as in decoding. The queries of all heads that share a key head are
// rows of one tile, so that k and v are read once. Each block has one split of the keys; a second kernel combines the
// splits in order.
//
// Each warp of a block has its own keys and its own ring of stages. Warps synchronize only at the end, to combine their
// results. Limit: reading k and v.
#include "core/cuda/launch.cuh"
#include "ops/attention/attention_fragments.cuh"
#include "ops/attention/attention_kernels.h"

namespace fusedops::cuda {
namespace {

// kOwnsMultiprocessor: a block uses all shared memory of a multiprocessor of compute capability 9.0, for long splits.
// Short splits end before the pipeline is full, so that several blocks share a multiprocessor.
template <int kD_, bool kOwnsMultiprocessor>
struct SplitTile {
  static constexpr int kD = kD_;
  static constexpr int kRows = 16, kN = 16;  // rows of a block, keys of a stage
  static constexpr int kWarps = (kOwnsMultiprocessor ? 2 : 1) * (kD > 128 ? 2 : 4), kThreads = 32 * kWarps;
  static constexpr int kStages = (kD > 64 ? 2 : 4) * (kOwnsMultiprocessor ? 3 : 2) / 2;
  static constexpr int kPitch = kPitchOf<kD>, kStage = 2 * kN * kPitch;  // elements of a stage: k, then v
  static constexpr int kRingBytes = kWarps * kStages * kStage * 2;
  static constexpr int kSharedBytes = kRows * kPitch * 2 + kRingBytes;
  // The results of the warps reuse the memory of the rings.
  static_assert(kWarps * kRows * (kD + 2) * 4 <= kRingBytes);
};

template <class T, class Tile, bool kBias>
__global__ void __launch_bounds__(Tile::kThreads)
    attention_split_kv_kernel(const __grid_constant__ Attention call, const Scores<T> score, const Splits splits,
                              const int row_tiles, const bool aligned) {
  constexpr int kD = Tile::kD, kN = Tile::kN, kPitch = Tile::kPitch, kStep = kN * Tile::kWarps;
  begin_kernel();
  extern __shared__ int4 shared[];
  T* const q = reinterpret_cast<T*>(shared);
  T* const rings = q + Tile::kRows * kPitch;
  const int warp = threadIdx.x / 32;

  // Neighbouring blocks share keys, or have adjacent heads of the same key positions.
  int64_t index = blockIdx.x;
  const int first_row = static_cast<int>(index % row_tiles) * Tile::kRows;
  index /= row_tiles;
  const int key_head = static_cast<int>(index % call.key_heads);
  index /= call.key_heads;
  const int split = static_cast<int>(index % splits.count);
  const int64_t b = index / splits.count;
  const Sequence sequence = call.sequence(b);
  const int rows = min(call.queries * call.group - first_row, Tile::kRows);
  const auto query_of = [&](int row) { return (first_row + row) / call.group; };
  const auto head_of = [&](int row) { return key_head * call.group + (first_row + row) % call.group; };
  const auto result_of = [&](int row) {
    return call.row(b, sequence, head_of(row), query_of(row)) * splits.count + split;
  };

  // Keys of the split that are visible to some row.
  const Range visible = call.band.keys(sequence, Range{query_of(0), query_of(rows - 1) + 1});
  const Range keys{max(visible.begin, split * splits.keys), min(visible.end, (split + 1) * splits.keys)};
  if (keys.is_empty()) {
    if (threadIdx.x < rows) splits.states[result_of(threadIdx.x)] = {kNegInf<float>, -1};
    return;
  }

  constexpr int kPerRow = kD / 8;
  for (int i = threadIdx.x; i < Tile::kRows * kPerRow; i += Tile::kThreads) {
    const int row = i / kPerRow, column = i % kPerRow * 8, in = min(row, rows - 1);
    copy_pack(q + row * kPitch + column, call.q.row<const T>(b, query_of(in), head_of(in)) + column,
              row < rows ? min(max(call.dim - column, 0), 8) : 0, aligned);
  }
  commit_copies();

  T* const ring = rings + warp * Tile::kStages * Tile::kStage;
  int first = keys.begin + warp * kN;  // next keys of this warp
  using Copy = RowCopy<T, kD, 32>;
  Copy of_k(call.k.row<const T>(b, first, key_head), call.k.position);
  Copy of_v(call.v.row<const T>(b, first, key_head), call.v.position);
  const auto copy_keys = [&](int at, int stage) {
    T* const to = ring + stage * Tile::kStage;
    if (at < keys.end) {
      of_k.template start<kN>(to, call.k.position, keys.end - at, call.dim, aligned);
      of_v.template start<kN>(to + kN * kPitch, call.v.position, keys.end - at, call.dim_v, aligned);
      of_k.advance(kStep * call.k.position), of_v.advance(kStep * call.v.position);
    }
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < Tile::kStages - 1; ++stage) copy_keys(first + stage * kStep, stage);
  wait_for_copies<Tile::kStages - 1>();
  __syncthreads();  // q has arrived

  // Visible keys and mask of the two rows of this lane.
  Range row_keys[2];
  const uint8_t* mask[2];
  float slope[2] = {};
  int diagonal[2];
  int64_t bias_place[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = fragment_row(2 * i), in = min(row, rows - 1);
    if (kBias) bias_place[i] = call.bias_place(b, head_of(in)) + query_of(in) * call.bias_row;
    if (call.alibi.data) slope[i] = call.alibi.get<T>(head_of(in));
    diagonal[i] = query_of(in) + sequence.shift;
    row_keys[i] = row < rows ? call.band.keys(sequence, query_of(row)) : Range{0, 0};
    mask[i] = call.has_mask ? call.mask.row(call.row(b, sequence, head_of(in), query_of(in))) : nullptr;
  }
  OnlineSoftmax<1> softmax;
  Fragments<1, kD / 8> y = {};
  uint32_t any = 0;  // one bit per row with a visible key
  int reading = 0, writing = Tile::kStages - 1;
  for (; first < keys.end; first += kStep) {
    copy_keys(first + (Tile::kStages - 1) * kStep, writing);
    wait_for_copies<Tile::kStages - 1>();
    __syncwarp();  // the keys have arrived
    const T* const k = ring + reading * Tile::kStage;
    Fragments<1, 2> scores = {};
    multiply<kD, AlongK<kPitch>, AlongK<kPitch>>(scores, q, k);
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = first + j * 8 + fragment_column(e), row = e / 2;
        if (!score.is_product) scores[0][j][e] = score.of(scores[0][j][e]) + alibi_bias(slope[row], diagonal[row], key);
        bool is_visible =
            row_keys[row].has(key) && key < keys.end && (!mask[row] || mask[row][call.mask.has_columns() ? key : 0]);
        if (kBias && is_visible) {
          const float bias = call.bias.at<T>(bias_place[row], key);
          scores[0][j][e] += bias;
          is_visible = bias != kNegInf<float>;
        }
        if (is_visible)
          any |= 1u << row;
        else
          scores[0][j][e] = kNegInf<float>;
      }
    softmax.add(scores, y, score.factor);
    multiply_scores<AlongRows<kPitch>>(y, scores, k + kN * kPitch);
    __syncwarp();  // the keys have been read
    reading = reading + 1 == Tile::kStages ? 0 : reading + 1;
    writing = writing + 1 == Tile::kStages ? 0 : writing + 1;
  }
  wait_for_copies<0>();
  __syncthreads();  // the rings are free

  float* const warp_partials = reinterpret_cast<float*>(rings);  // [warp, row, column]
  Splits::State* const states = reinterpret_cast<Splits::State*>(warp_partials + Tile::kWarps * Tile::kRows * kD);
  any |= __shfl_xor_sync(~0u, any, 1);
  any |= __shfl_xor_sync(~0u, any, 2);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = warp * Tile::kRows + fragment_row(2 * i);
    const float sum = sum_of_row(softmax.sum[i]);
    if (threadIdx.x % 4 == 0) states[row] = {softmax.max[i], any >> i & 1 ? sum : -1};
#pragma unroll
    for (int j = 0; j < kD / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) warp_partials[row * kD + j * 8 + fragment_column(e)] = y[0][j][2 * i + e];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows * kD; i += Tile::kThreads) {
    const int row = i / kD, column = i % kD;
    float max = kNegInf<float>, sum = 0, joined = 0;
    bool none = true;
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) max = fmaxf(max, states[w * Tile::kRows + row].max);
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) {
      const Splits::State state = states[w * Tile::kRows + row];
      if (state.sum < 0) continue;
      const float rescale = rescale_factor(state.max, max, score.factor);
      none = false;
      sum += rescale * state.sum;
      joined += rescale * warp_partials[(w * Tile::kRows + row) * kD + column];
    }
    const int64_t result = result_of(row);
    if (column < splits.pitch) splits.y[result * splits.pitch + column] = joined;
    if (column == 0) splits.states[result] = {max, none ? -1 : sum};
  }
}

constexpr int kCombineWarps = 8, kCombineThreads = 32 * kCombineWarps;
static_assert(kCombineThreads >= Splits::kMaxSplits && kCombineThreads >= 256);  // one thread per split, and per column

// Combines the splits of one row per block.
template <class T>
__global__ void __launch_bounds__(kCombineThreads)
    attention_combine_kernel(const __grid_constant__ Attention call, const Scores<T> score, const Splits splits) {
  begin_kernel();
  extern __shared__ int4 shared[];
  float* const rescales = reinterpret_cast<float*>(shared);    // per split; negative if it has no visible key
  float* const warp_partials = rescales + Splits::kMaxSplits;  // [warp], then [warp, column]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = blockIdx.x;

  Splits::State state{kNegInf<float>, -1};
  if (threadIdx.x < splits.count) state = splits.states[row * splits.count + threadIdx.x];
  float max = state.max;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, offset));
  if (lane == 0) warp_partials[warp] = max;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kCombineWarps; ++w) max = fmaxf(max, warp_partials[w]);
  if (threadIdx.x < splits.count)
    rescales[threadIdx.x] = state.sum < 0 ? -1 : rescale_factor(state.max, max, score.factor);
  __syncthreads();
  float sum = state.sum < 0 ? 0 : rescale_factor(state.max, max, score.factor) * state.sum;
  const bool some = __any_sync(~0u, !(state.sum < 0));
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (lane == 0) warp_partials[warp] = some ? sum : -1;
  __syncthreads();
  sum = 0;
  bool none = true;
#pragma unroll
  for (int w = 0; w < kCombineWarps; ++w) {
    if (warp_partials[w] < 0) continue;
    none = false;
    sum += warp_partials[w];
  }
  __syncthreads();

  // Each warp adds adjacent splits, then the first threads add the sums of the warps.
  const int per_warp = (splits.count + kCombineWarps - 1) / kCombineWarps;
  const int begin = warp * per_warp, end = min(begin + per_warp, splits.count);
  for (int column = lane * 4; column < splits.pitch; column += 128) {
    float4 joined = {0, 0, 0, 0};
#pragma unroll 8
    for (int split = begin; split < end; ++split) {
      const float rescale = rescales[split];
      if (rescale < 0) continue;
      const float4 y =
          *reinterpret_cast<const float4*>(splits.y + (row * splits.count + split) * splits.pitch + column);
      joined.x += rescale * y.x, joined.y += rescale * y.y, joined.z += rescale * y.z, joined.w += rescale * y.w;
    }
    *reinterpret_cast<float4*>(warp_partials + warp * splits.pitch + column) = joined;
  }
  __syncthreads();
  const int64_t query = row % call.queries, head = row / call.queries % call.heads;
  const int64_t b = row / call.queries / call.heads;
  max = score.scaled(max);
  const float of_keys = call.sinks.data ? add_sink(call.sinks.get<T>(static_cast<int>(head)), max, sum) : 1;
  if (threadIdx.x < call.dim_v) {
    float joined = 0;
#pragma unroll
    for (int w = 0; w < kCombineWarps; ++w) joined += warp_partials[w * splits.pitch + threadIdx.x];
    call.y.row<T>(b, query, head)[threadIdx.x] = from_compute<T>(none ? 0 : joined * of_keys / sum);
  }
  if (threadIdx.x == 0) *call.lse.row<float>(b, query, head) = max + logf(sum);
}

template <class T, class Tile>
Status launch_split(const Attention& call, const Splits& splits, const Context& context) {
  const int row_tiles = (call.queries * call.group + Tile::kRows - 1) / Tile::kRows;
  const int64_t blocks = call.sequences * splits.count * call.key_heads * row_tiles;
  const bool aligned = are_aligned<T>(call.q) && are_aligned<T>(call.k) && are_aligned<T>(call.v);
  const auto kernel = call.bias.is_given() ? attention_split_kv_kernel<T, Tile, /*kBias=*/true>
                                           : attention_split_kv_kernel<T, Tile, /*kBias=*/false>;
  return launch(context, kernel, Grid{blocks, Tile::kThreads, Tile::kSharedBytes}, call, Scores<T>(call), splits,
                row_tiles, aligned);
}

template <class T, int kD>
Status split_tiles(const Attention& call, const Splits& splits, const Context& context) {
  using LongSplitTile = SplitTile<kD, true>;
  if (splits.are_long && device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= LongSplitTile::kSharedBytes)
    return launch_split<T, LongSplitTile>(call, splits, context);
  return launch_split<T, SplitTile<kD, false>>(call, splits, context);
}

template <class T>
Status run_split(const Attention& call, const Splits& splits, const Context& context) {
  const int dim = std::max(call.dim, call.dim_v);
  FUSEDOPS_TRY((dim <= 64    ? split_tiles<T, 64>
                : dim <= 128 ? split_tiles<T, 128>
                             : split_tiles<T, 256>)(call, splits, context));
  const int shared_bytes = (Splits::kMaxSplits + kCombineWarps * splits.pitch) * int(sizeof(float));
  return launch(context, attention_combine_kernel<T>, Grid{call.rows(), kCombineThreads, shared_bytes}, call,
                Scores<T>(call), splits);
}

}  // namespace

Status attention_split_kv(const Attention& call, void* workspace, const Context& context) {
  const Splits splits(call, workspace);
  return call.dtype == DType::f16 ? run_split<f16>(call, splits, context) : run_split<bf16>(call, splits, context);
}

}  // namespace fusedops::cuda
