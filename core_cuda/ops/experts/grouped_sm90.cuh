// 16-bit grouped products on compute capability 9.x. Persistent blocks take the listed tiles of rows in turn, each with
// all column tiles. Limit: the tensor cores; for few rows, reading the matrices of the groups that have rows.
//
// An epilogue has rows(), the places of a warp's rows, operator()(sums, places, group, first column, staged), and
// clear() for rows without a group: see StoreGroupRows.
#pragma once

#include "ops/experts/grouped_tiles_sm90.cuh"

namespace fusedops::cuda {

template <class Epilogue>
struct GroupedCallSm90 {
  CUtensorMap b;
  GroupTiles tiles;
  Epilogue epilogue;
  GroupRows x;
  int groups, k, column_tiles;
  int half;  // columns between those of a tile that has two ranges of columns
  bool has_matrices;
};

// The block's work tiles.
template <class S, class Call>
class GroupedWork {
 public:
  static constexpr int kColumns = S::kColumns / S::kWeights;

  __device__ explicit GroupedWork(const Call& call)
      : call_(call), count_(*call.tiles.count(call.groups) * call.column_tiles), at_(blockIdx.x) {
    tile_ = load(at_);
    next_ = load(at_ + int(gridDim.x));
  }

  __device__ bool is_done() const { return at_ >= count_; }
  __device__ const GroupTile& tile() const { return tile_; }
  __device__ int column() const { return at_ % call_.column_tiles * kColumns; }
  __device__ bool has_group() const { return tile_.group < call_.groups; }

  __device__ void next() {
    at_ += int(gridDim.x);
    tile_ = next_;
    next_ = load(at_ + int(gridDim.x));
  }

 private:
  __device__ GroupTile load(int at) const {
    return at < count_ ? call_.tiles.tiles[at / call_.column_tiles] : GroupTile();
  }

  const Call& call_;
  int count_, at_;
  GroupTile tile_, next_;  // loaded one tile ahead
};

template <class S, class Call>
__forceinline__ __device__ void produce_grouped(const Call& call, typename S::Shared& shared) {
  constexpr int kColumns = S::kColumns / S::kWeights, kBytesOfB = S::kColumns * S::kDepth * int(sizeof(typename S::T));
  const bool leads = threadIdx.x == S::kConsumerThreads;
  typename S::State state;
  FullStages<S> full(shared);
  RowCopies<typename S::T, S::kRows, S::kDepth> rows;
  if (leads) cute::prefetch_tma_descriptor(&call.b);
#pragma unroll 1
  for (GroupedWork<S, Call> work(call); !work.is_done(); work.next()) {
    if (!work.has_group()) continue;
    rows.find(call.x, work.tile().first, work.tile().end);
    const int matrix = call.has_matrices ? work.tile().group : 0, column = work.column();
#pragma unroll 1
    for (int k = 0; k < call.k; k += S::kDepth, ++state) {
      shared.ring.empty[state.stage].wait(state.phase ^ 1);
      if (leads) {
        auto& barrier = shared.ring.full[state.stage];
        barrier.expect_transaction(kBytesOfB);
#pragma unroll
        for (int i = 0; i < S::kWeights; ++i)
          copy_lines<S, S::kAlongK, kColumns, false>(call.b, reinterpret_cast<uint64_t*>(&barrier),
                                                     shared.b[state.stage] + i * kColumns * S::kDepth,
                                                     column + i * call.half, k, matrix);
      }
      __syncwarp();
      rows.copy(shared.a[state.stage], call.x, k, call.k);
      full.add(state.stage);
    }
  }
  full.finish();
}

// Releases the k-tiles of a work tile without a product. One thread follows the ring: nothing else would keep the warps
// within one phase of each other, as wgmma does.
template <class S>
__forceinline__ __device__ void skip_tile(typename S::Shared& shared, typename S::State& state, int k_tiles,
                                          int group) {
  if (threadIdx.x % sm90::kWarpgroup == 0) {
    typename S::State at = state;
#pragma unroll 1
    for (int i = 0; i < k_tiles; ++i, ++at) {
      shared.ring.wait(at);
      shared.ring.release(at.stage);
    }
  }
  state += k_tiles;
  cutlass::arch::NamedBarrier::sync(sm90::kWarpgroup, uint32_t(group));
}

template <class S, class Epilogue>
__global__ void __launch_bounds__(S::kThreads, 1)
    grouped_sm90_kernel(const __grid_constant__ GroupedCallSm90<Epilogue> call) {
  using Call = GroupedCallSm90<Epilogue>;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  run_warpgroups<S>(
      shared, [&] { produce_grouped<S>(call, shared); },
      [&](int group, typename S::Sums& sums, char* staged) {
        const int k_tiles = (call.k + S::kDepth - 1) / S::kDepth, row = group * (S::kRows / S::kConsumers);
        typename S::State state;
#pragma unroll 1
        for (GroupedWork<S, Call> work(call); !work.is_done(); work.next()) {
          const int first = work.tile().first + row + int(threadIdx.x / 32 % 4) * 16, end = work.tile().end;
          const bool stores = first < end;
          const auto rows = call.epilogue.rows(first + int(threadIdx.x % 16), end);
          if (work.has_group()) {
            if (work.tile().first + row >= work.tile().end) {  // no row of the warpgroup
              skip_tile<S>(shared, state, k_tiles, group);
              continue;
            }
            multiply_tile<S>(shared, state, k_tiles, row, sums, [] {});
            if (stores) call.epilogue(sums, rows, work.tile().group, work.column(), staged);
          } else if (stores) {
            call.epilogue.clear(rows, work.column(), staged);
          }
        }
      });
}

// Adds the bias of a group to values of a panel that begins at this column.
template <class T, int kValues>
__forceinline__ __device__ void add_bias(float (&values)[kValues], const T* bias, int column, int columns) {
  column += int(threadIdx.x % 4) * 2;
#pragma unroll
  for (int i = 0; i < kValues; i += 4) {
    const int at = column + i * 2;
    if (at >= columns) continue;
    const float first = to_compute(bias[at]), second = to_compute(bias[at + 1]);
    values[i] += first, values[i + 2] += first;
    values[i + 1] += second, values[i + 3] += second;
  }
}

// Stores y = sums + bias.
template <class T>
struct StoreGroupRows {
  using Panels = PanelRows<T>;
  static constexpr int kStagedBytes = Panels::kBytes, kWeights = 1;

  const T* bias;  // null: none
  T* y;
  const int32_t* y_rows;  // null: r
  int columns;

  explicit StoreGroupRows(const GroupedMatmul& product)
      : bias(static_cast<const T*>(product.bias)),
        y(static_cast<T*>(product.y)),
        y_rows(product.y_rows),
        columns(int(product.n)) {}

  // The lane's row of y; -1: none.
  using Rows = int;
  __device__ Rows rows(int row, int end) const { return row >= end ? -1 : y_rows ? y_rows[row] : row; }

  __forceinline__ __device__ void operator()(const float (&sums)[1][128], Rows row, int group, int column,
                                             char* staged) const {
    const Panels to_y(staged, row);
    const T* const of_group = bias ? bias + int64_t(group) * columns : nullptr;
#pragma unroll
    for (int panel = 0; panel < 256 / Panels::kColumns; ++panel) {
      const int at = column + panel * Panels::kColumns;
      float values[Panels::kValues];
#pragma unroll
      for (int i = 0; i < Panels::kValues; ++i) values[i] = sums[0][panel * Panels::kValues + i];
      if (of_group) add_bias(values, of_group, at, columns);
      to_y.store(y, at, columns, columns, [&](int i) { return values[i]; });
    }
  }

  __device__ void clear(Rows row, int column, char* staged) const {
    const Panels to_y(staged, row);
    for (int i = 0; i < 256; i += Panels::kColumns)
      to_y.store(y, column + i, columns, columns, [](int) { return 0.0f; });
  }
};

// Stores h, the gate of z = sums + bias, and z if it is kept. A tile has 128 columns of h: of gates and of ups, or
// 256 columns of both in turn if they are interleaved.
template <class T, bool kInterleaved>
struct StoreGate : StoreGroupRows<T> {
  using Base = StoreGroupRows<T>;
  using Panels = typename Base::Panels;
  static constexpr int kWeights = kInterleaved ? 1 : 2;

  ExpertGate gate;
  bool keep_z;
  T* h;

  explicit StoreGate(const ExpertsUp& step)
      : Base(step.product), gate(step.gate), keep_z(step.keep_z), h(static_cast<T*>(step.h)) {}

  struct Rows {
    int of_z, of_h;
  };
  __device__ Rows rows(int row, int end) const { return {keep_z ? Base::rows(row, end) : -1, row < end ? row : -1}; }

  __forceinline__ __device__ void operator()(const float (&sums)[1][128], const Rows& rows, int group, int column,
                                             char* staged) const {
    const Panels to_z(staged, rows.of_z), to_h(staged, rows.of_h);
    const T* const bias = this->bias ? this->bias + int64_t(group) * this->columns : nullptr;
    // Not unrolled: the body has the formulas of all activations.
#pragma unroll 1
    for (int panel = 0; panel < 2; ++panel) {
      const Columns at(*this, column, panel);
      float first[kValues], second[kValues];  // panels of z
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        constexpr int kNext = kInterleaved ? 2 : 1, kSecond = kInterleaved ? 1 : 2;
        first[i] = panel ? sums[0][kNext * kValues + i] : sums[0][i];
        second[i] = panel ? sums[0][(kNext + kSecond) * kValues + i] : sums[0][kSecond * kValues + i];
      }
      if (bias) {
        add_bias(first, bias, at.z, at.z_columns);
        add_bias(second, bias + at.second, at.z, at.second_columns);
      }
      store_z(to_z, at, [&](int i) { return first[i]; }, [&](int i) { return second[i]; });
      float values[kValues];
      activations::dispatch(gate.activation, [&](auto chosen) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
          constexpr int kHalf = kValues / 2;
          const auto pair = [&](int side) { return i < kHalf ? first[2 * i + side] : second[2 * (i - kHalf) + side]; };
          values[i] =
              gated_value<decltype(chosen)>(gate, kInterleaved ? pair(0) : first[i], kInterleaved ? pair(1) : second[i])
                  .value;
        }
      });
      if constexpr (kInterleaved) to_fragment(values);
      to_h.store(h, at.h, int(gate.size), int(gate.size), [&](int i) { return values[i]; });
    }
  }

  __device__ void clear(const Rows& rows, int column, char* staged) const {
    const Panels to_z(staged, rows.of_z), to_h(staged, rows.of_h);
    const auto zero = [](int) { return 0.0f; };
    for (int panel = 0; panel < 2; ++panel) {
      const Columns at(*this, column, panel);
      store_z(to_z, at, zero, zero);
      to_h.store(h, at.h, int(gate.size), int(gate.size), zero);
    }
  }

 private:
  static constexpr int kValues = Panels::kValues;

  // Columns of a panel of h, and of the two panels of z that it needs. The second one begins `second` columns later.
  struct Columns {
    __device__ Columns(const StoreGate& store, int column, int panel)
        : h((kInterleaved ? column / 2 : column) + panel * Panels::kColumns),
          z(kInterleaved ? 2 * h : h),
          second(kInterleaved ? Panels::kColumns : store.columns / 2),
          z_columns(kInterleaved ? store.columns : store.columns / 2),
          second_columns(kInterleaved ? store.columns - second : z_columns) {}

    int h, z, second, z_columns, second_columns;
  };

  template <class First, class Second>
  __forceinline__ __device__ void store_z(const Panels& to_z, const Columns& at, First&& first, Second&& second) const {
    if (!keep_z) return;
    to_z.store(this->y, at.z, at.z_columns, this->columns, first);
    to_z.store(this->y + at.second, at.z, at.second_columns, this->columns, second);
  }

  // From one of each 4 columns, lane % 4, to the two of each 8 columns that a Fragment has.
  static __forceinline__ __device__ void to_fragment(float (&values)[kValues]) {
    const int lane = threadIdx.x % 32, from = lane / 4 * 4 + lane % 2 * 2;
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {  // 8 columns: two rows of columns 0 to 3, two rows of columns 4 to 7
      float moved[4];
#pragma unroll
      for (int row = 0; row < 2; ++row)
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const float low = __shfl_sync(0xffffffff, values[i + row], from + side);
          const float high = __shfl_sync(0xffffffff, values[i + 2 + row], from + side);
          moved[2 * row + side] = lane % 4 < 2 ? low : high;
        }
#pragma unroll
      for (int j = 0; j < 4; ++j) values[i + j] = moved[j];
    }
  }
};

template <class T, bool kAlongK, class Epilogue>
Status launch_grouped_sm90(const GroupedMatmul& product, const Epilogue& epilogue, const GroupTiles& tiles,
                           const Context& context) {
  constexpr int kWeights = Epilogue::kWeights;
  using S = Gemm<T, GroupedTiles<kWeights>, true, kAlongK, Epilogue::kStagedBytes>;
  static_assert(S::kRows == kGroupTileRows);
  const Matmul matrices = representative(product);
  const int columns = int(product.n) / kWeights;
  GroupedCallSm90<Epilogue> call = {.tiles = tiles,
                                    .epilogue = epilogue,
                                    .x = product.x,
                                    .groups = int(product.groups.groups),
                                    .k = int(product.k),
                                    .column_tiles = int(ceil_div(columns, S::kColumns / kWeights)),
                                    .half = columns,
                                    .has_matrices = has_matrices(matrices, product.b)};
  FUSEDOPS_TRY(describe_lines(matrices, product.b, kAlongK, product.n, S::kColumns / kWeights, &call.b));
  return launch_grouped_sm90<S>(context, grouped_sm90_kernel<S, Epilogue>,
                                GroupTiles::max_count(product.groups) * call.column_tiles, call);
}

template <class T, class Epilogue>
Status launch_grouped_sm90(const GroupedMatmul& product, const Epilogue& epilogue, const GroupTiles& tiles,
                           const Context& context) {
  return product.b.transposed ? launch_grouped_sm90<T, true>(product, epilogue, tiles, context)
                              : launch_grouped_sm90<T, false>(product, epilogue, tiles, context);
}

}  // namespace fusedops::cuda
