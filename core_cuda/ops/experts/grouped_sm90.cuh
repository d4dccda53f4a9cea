// 16-bit grouped products on compute capability 9.x. Persistent blocks take the listed tiles of rows in turn, each with
// all column tiles. Limit: the tensor cores; for few rows, reading the matrices of the groups that have rows.
//
// An epilogue has prepare(product), on the host, rows(), the places of a warp's rows,
// operator()(sums, places, group, first column, staged), and clear() for rows without a group: see StoreGroupRows.
#pragma once

#include "ops/experts/grouped_tiles_sm90.cuh"

namespace fusedops::cuda {

// kIsPaired: a cluster of two blocks has the same columns of two listed tiles. If these are in one group, the blocks
// multicast the tile of b, and else each copies its own.
template <bool kIsPaired, int kColumns, int kWeights>
using GroupedTiles = TileShape<kColumns, Schedule::cooperative, kIsPaired, kWeights>;

// Up to this average number of rows of a group, tiles are narrow and blocks have no pairs: reading the matrices is the
// limit, and more blocks read them.
inline constexpr int64_t kMaxNarrowRows = 32;

template <class Epilogue>
struct GroupedCallSm90 {
  CUtensorMap x_map, b;
  GroupTiles tiles;
  Epilogue epilogue;
  GroupRows x;
  int groups, k, column_tiles;
  int half;  // columns between the two halves of a tile
  bool has_matrices, is_listed;
};

// The block's work tiles.
template <class S, class Call>
class GroupedWork {
 public:
  static constexpr int kColumns = S::kColumns / S::kWeights;

  __device__ explicit GroupedWork(const Call& call)
      : call_(call),
        tiles_(__ldcg(call.tiles.count(call.groups))),
        count_((tiles_ + S::kCluster - 1) / S::kCluster * call.column_tiles),
        at_(int(blockIdx.x) / S::kCluster) {
    tile_ = load(at_);
    next_ = load(at_ + stride());
  }

  __device__ bool is_done() const { return at_ >= count_; }
  __device__ const GroupTile& tile() const { return tile_.tile; }
  __device__ int column() const { return at_ % call_.column_tiles * kColumns; }
  __device__ bool has_group() const { return tile_.tile.group < call_.groups; }
  __device__ bool is_shared() const { return S::kIsPaired && has_group() && tile_.tile.group == tile_.group_of_pair; }

  // True if the block's ring has stages for the tile. A pair's rings have the same number of stages.
  __device__ bool has_stages() const { return has_group() || (S::kIsPaired && tile_.group_of_pair < call_.groups); }

  __device__ void next() {
    at_ += stride();
    tile_ = next_;
    next_ = load(at_ + stride());
  }

 private:
  struct Tile {
    GroupTile tile;
    int group_of_pair;  // of the other block's tile
  };

  static __device__ int stride() { return int(gridDim.x) / S::kCluster; }

  // A tile past the last one has no rows and no group. The list is read from L2: the multiprocessor's L1 may have lines
  // of an older list while earlier work still runs.
  __device__ Tile load(int at) const {
    const int rank = int(blockIdx.x) % S::kCluster, tile = at / call_.column_tiles * S::kCluster + rank;
    const auto listed = [&](int tile) {
      if (tile >= tiles_) return GroupTile{0, 0, call_.groups};
      const int4 words = __ldcg(reinterpret_cast<const int4*>(call_.tiles.tiles + tile));
      return GroupTile{words.x, words.y, words.z};
    };
    return {listed(tile), S::kIsPaired ? listed(tile ^ 1).group : call_.groups};
  }

  const Call& call_;
  int tiles_, count_, at_;
  Tile tile_, next_;  // the latter is loaded one tile ahead
};

// Copies a stage's tile of b: two halves, of which each block of a pair that shares the tile multicasts one.
template <class S, class Call>
__forceinline__ __device__ void copy_columns(const Call& call, uint64_t* full, typename S::T* to, int column, int k,
                                             int matrix, bool is_shared) {
  constexpr int kHalf = S::kColumns / 2;
  const int rank = int(blockIdx.x) % S::kCluster;
  if (S::kIsPaired && is_shared) {
    copy_lines<S, S::kAlongK, kHalf, S::kIsPaired>(call.b, full, to + rank * kHalf * S::kDepth,
                                                   column + rank * call.half, k, matrix);
    return;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
    copy_lines<S, S::kAlongK, kHalf, false>(call.b, full, to + i * kHalf * S::kDepth, column + i * call.half, k,
                                            matrix);
}

template <class S, class Call>
__forceinline__ __device__ void produce_grouped(const Call& call, typename S::Shared& shared) {
  constexpr int kBytesOfA = S::kRows * S::kDepth * int(sizeof(typename S::T));
  constexpr int kBytesOfB = S::kColumns * S::kDepth * int(sizeof(typename S::T));
  const bool leads = threadIdx.x == S::kConsumerThreads, is_gathered = call.x.rows != nullptr;
  typename S::State state;
  RowCopies<typename S::T, S::kRows, S::kDepth, false> rows;  // others are not stored
  if (leads) {
    cute::prefetch_tma_descriptor(&call.x_map);
    cute::prefetch_tma_descriptor(&call.b);
  }
  if (!call.is_listed) cudaGridDependencySynchronize();
  GroupedWork<S, Call> work(call);
  int early = 0;  // stages of the first tile whose columns are copied before earlier work is complete
  if (call.is_listed) {
    if (!work.is_done() && work.has_group()) {
      const int matrix = call.has_matrices ? work.tile().group : 0;
      early = min(S::kStages, (call.k + S::kDepth - 1) / S::kDepth);
      for (int stage = 0; leads && stage < early; ++stage) {
        auto& barrier = shared.ring.full[stage];
        barrier.expect_transaction(kBytesOfB);
        copy_columns<S>(call, reinterpret_cast<uint64_t*>(&barrier), shared.b[stage], work.column(), stage * S::kDepth,
                        matrix, work.is_shared());
      }
    }
    __syncwarp();
    cudaGridDependencySynchronize();
  }
#pragma unroll 1
  for (; !work.is_done(); work.next()) {
    if (!work.has_stages()) continue;
    const bool has_group = work.has_group(), is_shared = work.is_shared();
    const int matrix = call.has_matrices ? work.tile().group : 0, column = work.column(), row = work.tile().first;
    if (is_gathered) rows.find(call.x, row, work.tile().end);
#pragma unroll 1
    for (int k = 0; k < call.k; k += S::kDepth, ++state) {
      shared.ring.empty[state.stage].wait(state.phase ^ 1);
      if (leads && has_group) {
        auto& barrier = shared.ring.full[state.stage];
        auto* const of_copies = reinterpret_cast<uint64_t*>(&barrier);
        const bool has_columns = state.count < early;
        barrier.expect_transaction((has_columns ? 0 : kBytesOfB) + (is_gathered ? 0 : kBytesOfA));
        if (!is_gathered)  // rows past the end of the tile are not stored
          copy_lines<S, true, S::kRows, false>(call.x_map, of_copies, shared.a[state.stage], row, k, 0);
        if (!has_columns) copy_columns<S>(call, of_copies, shared.b[state.stage], column, k, matrix, is_shared);
      }
      __syncwarp();
      if (has_group && is_gathered) {
        rows.copy(shared.a[state.stage], call.x, k, call.k);
        arrive_after_copies<S>(shared, state.stage);
      } else {
        arrive_without_copies<S>(shared, state.stage);
      }
    }
  }
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
      if constexpr (S::kIsPaired) {
        for (int rank = 0; rank < S::kCluster; ++rank) shared.ring.empty[at.stage].arrive(rank);
      } else {
        shared.ring.release(at.stage);
      }
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
  run_warpgroups<S, /*kProducerRegisters=*/56>(
      shared, [&] { produce_grouped<S>(call, shared); },
      [&](int group, typename S::Sums& sums, char* staged) {
        const int k_tiles = (call.k + S::kDepth - 1) / S::kDepth, row = group * (S::kRows / S::kConsumers);
        typename S::State state;
#pragma unroll 1
        for (GroupedWork<S, Call> work(call); !work.is_done(); work.next()) {
          const int first = work.tile().first + row + int(threadIdx.x / 32 % 4) * 16, end = work.tile().end;
          const bool stores = first < end;
          const auto rows = call.epilogue.rows(first, end);
          if (work.has_group() && work.tile().first + row < end) {
            multiply_tile<S>(
                shared, state, k_tiles, row, sums, [] {},
                [&](int) {
                  if (call.x.rows) fence_copies();
                });
            if (stores) call.epilogue(sums, rows, work.tile().group, work.column(), staged);
            continue;
          }
          if (work.has_stages()) skip_tile<S>(shared, state, k_tiles, group);
          if (stores) call.epilogue.clear(rows, work.column(), staged);
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

// TMA descriptor of a result [count, columns].
template <class T>
Status describe_rows(const GroupedMatmul& product, void* rows, int64_t columns, CUtensorMap* map) {
  Matmul result = representative(product);
  result.batch = 1;
  result.n = result.c_stride = columns;
  return PanelStores<T>::describe(result, rows, map);
}

// Stores y = sums + bias, of tiles of kColumns_.
template <class T, int kColumns_>
struct StoreGroupRows {
  using Panels = PanelRows<T, kColumns_ / PanelStores<T>::kColumns>;
  static constexpr int kStagedBytes = Panels::kBytes, kColumns = kColumns_, kWeights = 1;
  using Sums = float[1][kColumns / 2];

  CUtensorMap map;  // of the result that is stored through TMA
  const T* bias;    // null: none
  T* y;
  const int32_t* y_rows;  // null: r
  int columns;

  explicit StoreGroupRows(const GroupedMatmul& product)
      : bias(static_cast<const T*>(product.bias)),
        y(static_cast<T*>(product.y)),
        y_rows(product.y_rows),
        columns(int(product.n)) {}

  Status prepare(const GroupedMatmul& product) { return describe_rows<T>(product, y, columns, &map); }

  // The thread's sums of a panel.
  using Panel = float[PanelStores<T>::kValues];
  static __forceinline__ __device__ Panel& panel(Sums& sums, int i) {
    return reinterpret_cast<Panel(&)[kColumns / PanelStores<T>::kColumns]>(sums)[i];
  }

  // The lane's row of y; -1: none. Rows of y that are adjacent, and all there, are stored through TMA.
  struct Rows {
    int number;
    bool are_adjacent;
  };
  __device__ Rows rows(int first, int end) const {
    const int row = first + int(threadIdx.x % 16);
    return {row >= end ? -1 : y_rows ? y_rows[row] : row, !y_rows && first + 16 <= end};
  }

  __forceinline__ __device__ void operator()(Sums& sums, const Rows& rows, int group, int column, char* staged) const {
    Panels to_y(staged, rows.number, rows.are_adjacent);
    const T* const of_group = bias ? bias + int64_t(group) * columns : nullptr;
#pragma unroll
    for (int i = 0; i < kColumns / Panels::kColumns; ++i) {
      const int at = column + i * Panels::kColumns;
      auto& values = panel(sums, i);
      if (of_group) add_bias(values, of_group, at, columns);
      to_y.store(map, y, at, columns, columns, [&](int i) { return values[i]; });
    }
  }

  __device__ void clear(const Rows& rows, int column, char* staged) const {
    Panels to_y(staged, rows.number, rows.are_adjacent);
    for (int i = 0; i < kColumns; i += Panels::kColumns)
      to_y.store(map, y, column + i, columns, columns, [](int) { return 0.0f; });
  }
};

// Stores h, the gate of z = sums + bias, and z if it is kept. A tile has kColumns / 2 columns of h: of gates and of
// ups, or kColumns of both in turn if they are interleaved.
template <class T, int kColumns, bool kInterleaved>
struct StoreGate : StoreGroupRows<T, kColumns> {
  using Base = StoreGroupRows<T, kColumns>;
  static constexpr int kWeights = kInterleaved ? 1 : 2, kPanels = kColumns / 2 / PanelStores<T>::kColumns;  // of h
  using Panels = PanelRows<T, kPanels>;

  ExpertGate gate;
  bool keep_z;
  T* h;

  explicit StoreGate(const ExpertsUp& step)
      : Base(step.product), gate(step.gate), keep_z(step.keep_z), h(static_cast<T*>(step.h)) {}

  Status prepare(const GroupedMatmul& product) { return describe_rows<T>(product, h, gate.size, &this->map); }

  struct Rows {
    int of_z, of_h;
    bool are_adjacent;  // those of h
  };
  __device__ Rows rows(int first, int end) const {
    const int row = first + int(threadIdx.x % 16);
    return {keep_z ? Base::rows(first, end).number : -1, row < end ? row : -1, first + 16 <= end};
  }

  // Overwrites the sums, since no registers are left for a copy of a panel.
  __forceinline__ __device__ void operator()(typename Base::Sums& sums, const Rows& rows, int group, int column,
                                             char* staged) const {
    constexpr int kNext = kInterleaved ? 2 : 1, kSecond = kInterleaved ? 1 : kPanels;  // panels of z
    Panels to_z(staged, rows.of_z, false), to_h(staged, rows.of_h, rows.are_adjacent);
    const T* const bias = this->bias ? this->bias + int64_t(group) * this->columns : nullptr;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const Columns at(*this, column, panel);
      auto& first = this->panel(sums, panel * kNext);
      auto& second = this->panel(sums, panel * kNext + kSecond);
      if (bias) {
        add_bias(first, bias, at.z, at.z_columns);
        add_bias(second, bias + at.second, at.z, at.second_columns);
      }
      store_z(to_z, at, [&](int i) { return first[i]; }, [&](int i) { return second[i]; });
      activations::dispatch(gate.activation, [&](auto chosen) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) {  // ascending: values 2i and 2i + 1 are read before value i is written
          constexpr int kHalf = kValues / 2;
          const auto pair = [&](int side) { return i < kHalf ? first[2 * i + side] : second[2 * (i - kHalf) + side]; };
          first[i] =
              gated_value<decltype(chosen)>(gate, kInterleaved ? pair(0) : first[i], kInterleaved ? pair(1) : second[i])
                  .value;
        }
      });
      if constexpr (kInterleaved) to_fragment(first);
      to_h.store(this->map, h, at.h, int(gate.size), int(gate.size), [&](int i) { return first[i]; });
    }
  }

  __device__ void clear(const Rows& rows, int column, char* staged) const {
    Panels to_z(staged, rows.of_z, false), to_h(staged, rows.of_h, rows.are_adjacent);
    const auto zero = [](int) { return 0.0f; };
    for (int panel = 0; panel < kPanels; ++panel) {
      const Columns at(*this, column, panel);
      store_z(to_z, at, zero, zero);
      to_h.store(this->map, h, at.h, int(gate.size), int(gate.size), zero);
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
  __forceinline__ __device__ void store_z(Panels& to_z, const Columns& at, First&& first, Second&& second) const {
    if (!keep_z) return;
    to_z.store(this->map, this->y, at.z, at.z_columns, this->columns, first);
    to_z.store(this->map, this->y + at.second, at.z, at.second_columns, this->columns, second);
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

template <class T, bool kIsPaired, bool kAlongK, class Epilogue>
Status launch_grouped_sm90(const GroupedMatmul& product, const Epilogue& epilogue, const GroupTiles& tiles,
                           const Context& context) {
  constexpr int kWeights = Epilogue::kWeights;
  using S = Gemm<T, GroupedTiles<kIsPaired, Epilogue::kColumns, kWeights>, true, kAlongK, Epilogue::kStagedBytes>;
  static_assert(S::kRows == kGroupTileRows);
  const Matmul matrices = representative(product);
  const int columns = int(product.n) / kWeights;
  GroupedCallSm90<Epilogue> call = {.tiles = tiles,
                                    .epilogue = epilogue,
                                    .x = product.x,
                                    .groups = int(product.groups.groups),
                                    .k = int(product.k),
                                    .column_tiles = int(ceil_div(columns, S::kColumns / kWeights)),
                                    .half = kWeights == 1 ? S::kColumns / 2 : columns,
                                    .has_matrices = has_matrices(matrices, product.b),
                                    .is_listed = product.is_listed};
  FUSEDOPS_TRY(call.epilogue.prepare(product));
  FUSEDOPS_TRY(describe_lines(matrices, matrices.a, /*along_k=*/true, matrices.m, S::kRows, &call.x_map));
  FUSEDOPS_TRY(describe_lines(matrices, product.b, kAlongK, product.n, S::kColumns / 2, &call.b));
  const int64_t row_tiles = ceil_div(GroupTiles::max_count(product.groups), int64_t(S::kCluster));
  return launch_grouped_sm90<S>(context, grouped_sm90_kernel<S, Epilogue>, row_tiles * call.column_tiles, call);
}

// make_epilogue(std::integral_constant<int, kColumns>()): the epilogue of tiles of kColumns.
template <class T, class MakeEpilogue>
Status launch_grouped_sm90(const GroupedMatmul& product, MakeEpilogue&& make_epilogue, const GroupTiles& tiles,
                           const Context& context) {
  const auto launch_with = [&]<bool kIsPaired, int kColumns>() {
    const auto epilogue = make_epilogue(std::integral_constant<int, kColumns>());
    return product.b.transposed ? launch_grouped_sm90<T, kIsPaired, true>(product, epilogue, tiles, context)
                                : launch_grouped_sm90<T, kIsPaired, false>(product, epilogue, tiles, context);
  };
  return product.groups.count <= kMaxNarrowRows * product.groups.groups ? launch_with.template operator()<false, 128>()
                                                                        : launch_with.template operator()<true, 256>();
}

}  // namespace fusedops::cuda
