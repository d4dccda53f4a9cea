// Entry points of the kernels for grouped products, with their preconditions. grouped_dispatch.h chooses among them.
// All read a list of tiles that list_groups() has written.
#pragma once

#include "ops/experts/experts.h"
#include "ops/experts/group_tiles.h"
#include "ops/experts/grouped_dispatch.h"

namespace fusedops::cuda {

// Lists the tiles of this many rows.
Status list_groups(const Groups& groups, int rows_of_tile, const GroupTiles& tiles, const Context& context);

// Any shape, stride and alignment; the result is not empty. Tiles have kMinGroupTileRows rows.
Status grouped_f64(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context);
Status grouped_f64(const GroupedGradient& product, const GroupTiles& tiles, const Context& context);
Status grouped_f32(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context);
Status grouped_f32(const GroupedGradient& product, const GroupTiles& tiles, const Context& context);
Status grouped_16(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context);
Status grouped_16(const GroupedGradient& product, const GroupTiles& tiles, const Context& context);

// Compute capability 9.x; TMA can load and store all matrices (can_tma_load_and_store). Tiles have
// kGroupedRowsSm90 rows.
inline constexpr int kGroupedRowsSm90 = 128;
Status grouped_sm90(const GroupedMatmul& product, const GroupTiles& tiles, const Context& context);
Status grouped_sm90(const GroupedGradient& product, const GroupTiles& tiles, const Context& context);
Status experts_up_sm90(const ExpertsUp& step, const GroupTiles& tiles, const Context& context);

}  // namespace fusedops::cuda
