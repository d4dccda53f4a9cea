// Tile shapes, shared memory and tile scheduler of gemm_sm90.cuh.
#pragma once

#include <algorithm>

#include "core/cuda/divisor.cuh"
#include "core/cuda/sm90/ring.cuh"
#include "core/cuda/sm90/swizzled_tile.cuh"
#include "ops/products/matmul_tiles.h"

namespace fusedops::cuda {

// Schedules of the two consumer warpgroups, as CUTLASS names them. Cooperative: each has 64 of the 128 rows of a tile.
// Ping-pong: each has its own tile of 128 rows, and one runs its epilogue while the other multiplies.
enum class Schedule { cooperative, ping_pong };

// kIsPaired: a cluster of two blocks has two adjacent tiles, in rows unless a kernel says otherwise, and multicasts the
// operand that both read. kWeights: number of matrices b that share the columns of a tile evenly.
template <int kColumns_, Schedule kSchedule_, bool kIsPaired_, int kWeights_ = 1, int kRows_ = 128>
struct TileShape {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kWeights = kWeights_;
  static constexpr Schedule kSchedule = kSchedule_;
  static constexpr bool kIsPaired = kIsPaired_;
};

// The largest tile whose sums fit into the registers of two warpgroups: it has the highest arithmetic intensity.
using LargeTiles = TileShape<256, Schedule::cooperative, true>;
// For small grids: twice as many blocks, and no cluster that is only half used.
using SmallTiles = TileShape<128, Schedule::cooperative, false>;
// For an expensive epilogue: with one tile for both warpgroups, the tensor cores would idle meanwhile.
using PingPongTiles = TileShape<128, Schedule::ping_pong, true>;

// Work tile of a warpgroup: first row and column in c, and index in the batch.
struct WorkTile {
  int row, column, matrix;
};

// Assigns work tiles to clusters. Tiles that run at the same time span at most kGroupHeight rows of clusters, so that
// L2 holds their operands.
class TileScheduler {
 public:
  // Counts are in cluster tiles.
  TileScheduler(int rows, int columns, int matrices)
      : count_(rows * columns * matrices),
        rows_(rows),
        of_matrix_(rows * columns),
        of_group_(kGroupHeight * columns),
        last_high_(std::max(rows % kGroupHeight, 1)),
        by_of_matrix_(of_matrix_),
        by_of_group_(of_group_),
        by_last_high_(last_high_) {}

  FUSEDOPS_HD int count() const { return count_; }

  // Row and column are in cluster tiles.
  __device__ WorkTile at(int work) const {
    const int matrix = quotient(work, by_of_matrix_), in_matrix = work - matrix * of_matrix_;
    const int group = quotient(in_matrix, by_of_group_), in_group = in_matrix - group * of_group_;
    const int first = group * kGroupHeight;
    if (first + kGroupHeight <= rows_) return {first + in_group % kGroupHeight, in_group / kGroupHeight, matrix};
    const int column = quotient(in_group, by_last_high_);
    return {first + in_group - column * last_high_, column, matrix};
  }

 private:
  static constexpr int kGroupHeight = 8;

  static __device__ int quotient(int dividend, const Divisor& divisor) {
    return int(divisor.divide(dividend).quotient);
  }

  int count_, rows_, of_matrix_, of_group_, last_high_;
  Divisor by_of_matrix_, by_of_group_, by_last_high_;
};

// Constants of a kernel. kRowsAlongK and kAlongK: the unit stride of a, and of b, is along k. kStagedBytes: shared
// memory of each consumer warp for the stores of its epilogue.
template <class T_, class Tiles_, bool kRowsAlongK_, bool kAlongK_, int kStagedBytes_>
struct Gemm {
  using T = T_;
  using Tiles = Tiles_;
  static constexpr bool kRowsAlongK = kRowsAlongK_, kAlongK = kAlongK_, kIsPaired = Tiles::kIsPaired;
  static constexpr bool kIsPingPong = Tiles::kSchedule == Schedule::ping_pong;
  static constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns, kDepth = kTileDepth, kLines = kTileLines;
  static constexpr int kCluster = kIsPaired ? 2 : 1, kWeights = Tiles::kWeights;

  static constexpr int kConsumers = 2, kConsumerThreads = kConsumers * sm90::kWarpgroup;
  static constexpr int kThreads = kConsumerThreads + sm90::kWarpgroup;
  static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;

  // A consumer warpgroup has 64 rows, or twice 64. Accumulators of a thread: see Fragment in wgmma.cuh.
  static constexpr int kProducts = kRows / 64 / (kIsPingPong ? 1 : kConsumers);
  using Sums = float[kProducts][kColumns / 2];

  // As many stages as fit into shared memory beside the epilogue's memory.
  static constexpr int kStageBytes = (kRows + kColumns) * kDepth * int(sizeof(T));
  static constexpr int kStagedBytes = kStagedBytes_, kAllStaged = kStagedBytes * kConsumerThreads / 32;
  static constexpr int kRoom = (227 << 10) - 512;
  static constexpr int kStages = (kRoom - kAllStaged) / kStageBytes;
  using State = sm90::RingState<kStages>;

  struct Shared {
    alignas(1024) T a[kStages][kRows * kDepth];
    alignas(1024) T b[kStages][kColumns * kDepth];
    alignas(1024) char staged[std::max(kAllStaged, 1)];
    sm90::Ring<kStages> ring;
  };
  static_assert(sizeof(Shared) <= 227 << 10);
};

}  // namespace fusedops::cuda
